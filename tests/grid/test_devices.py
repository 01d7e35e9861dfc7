"""Distinct GPUs for jobs that run at once, whatever happens to the jobs. The devices are names; none is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokencredit.grid.devices import hold, visible
from tokencredit.study.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from tokencredit.grid.devices import hold
with hold("auto", int(sys.argv[2]), Path(sys.argv[1])) as names:
    print(*names, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-a1/b,2")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def holder(locks: Path, count: int = 1) -> tuple[subprocess.Popen[str], str]:
    """A process that holds a device, and the device's name."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(locks), str(count)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def test_jobs_get_distinct_devices_and_a_killed_holder_frees_its_own(tmp_path: Path) -> None:
    held = [holder(tmp_path) for _ in range(3)]
    try:
        assert sorted(name for _, name in held) == ["0", "2", "GPU-a1/b"]
        process, name = held[1]
        os.kill(process.pid, signal.SIGKILL)
        begun = time.monotonic()
        with hold("cuda", 1, tmp_path) as given:
            assert given == [name]
            assert os.environ["CUDA_VISIBLE_DEVICES"] == name
            assert time.monotonic() - begun < 5
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,GPU-a1/b,2"
    finally:
        end(*(process for process, _ in held))


def test_a_job_waits_while_all_devices_are_in_use(tmp_path: Path) -> None:
    held = [holder(tmp_path) for _ in range(3)]
    waiting = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "1"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1.0)
        assert waiting.poll() is None
        held[2][0].kill()
        assert waiting.stdout
        assert waiting.stdout.readline().strip() == held[2][1]
    finally:
        end(waiting, *(process for process, _ in held))


def test_several_are_held_at_once_or_none(tmp_path: Path) -> None:
    first, name = holder(tmp_path)
    pair = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "3"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1.0)
        assert pair.poll() is None  # two are free, and it holds neither while it waits
        with hold("cuda", 2, tmp_path) as names:
            assert set(names) == {"0", "GPU-a1/b", "2"} - {name}
            assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(names)
        first.kill()
        assert pair.stdout
        assert set(pair.stdout.readline().split()) == {"0", "GPU-a1/b", "2"}
    finally:
        end(pair, first)
    with pytest.raises(UserError, match="needs 4 GPUs"), hold("cuda", 4, tmp_path):
        pass


@pytest.mark.parametrize(
    ("device", "devices", "job"), [("cpu", "0,1", ""), ("auto", "0", ""), ("auto", "", ""), ("cuda", "0,1", "17")]
)
def test_nothing_is_done_without_a_choice(
    device: str, devices: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    with hold(device, 1, tmp_path) as names:
        assert names == []
        assert os.environ["CUDA_VISIBLE_DEVICES"] == devices
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "names"), [("3, 1", ["3", "1"]), ("1,-1,2", ["1"]), ("-1", []), ("", [])])
def test_the_list_is_read_as_cuda_reads_it(given: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible() == names


def test_devices_are_asked_of_the_driver_where_no_list_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU-aa\\nGPU-bb\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible() == ["GPU-aa", "GPU-bb"]
    with hold("auto", 1, tmp_path / "locks") as names:
        assert names == ["GPU-aa"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ

"""A disk that is really full, or read-only: one message, nothing lost, and the same bytes once it is mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.training.conftest import study
from tokencredit.study import load_study, specs
from tokencredit.study.provenance import file_digest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # on a busy machine
ROLLOUTS = 16
KB = 1024
SAME = ("metrics.parquet", "rollouts.parquet", "step4/model.safetensors", f"step{2 * ROLLOUTS}/model.safetensors")


class Disk:
    """A file system in memory, of a given size, mounted on a folder."""

    def __init__(self, folder: Path, size: int):
        self.folder, self.size = folder, size
        folder.mkdir(parents=True, exist_ok=True)
        mount(folder, f"size={size}", "-t", "tmpfs", "tmpfs")

    def grow(self, size: int) -> None:
        self.size += size
        mount(self.folder, f"remount,size={self.size}")


def mount(folder: Path, options: str, *more: str) -> None:
    done = subprocess.run(["mount", *more, "-o", options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A working folder; what a test mounts below it is unmounted."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root on Linux")
    yield tmp_path / "broken"
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in reversed([m for m in mounts if Path(m).is_relative_to(tmp_path)]):  # the latest first
        subprocess.run(["umount", path], check=True)


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The unbroken run."""
    root = tmp_path_factory.mktemp("whole")
    code, said = train(root, inputs)
    assert code == 0, said
    return digests(root)


def train(root: Path, inputs: Path) -> tuple[int, str]:
    """The job as the workflow's rule starts it; (exit code, what it said)."""
    (root / "cells").mkdir(parents=True, exist_ok=True)
    spec = specs(load_study(study(rollouts=ROLLOUTS)))["train.m.scapo.seed0"]
    spec["credit_method"]["credit"][1]["steps"] = 2 * ROLLOUTS  # its correction moves weights where no answer is right
    for name, content in (("train", spec), ("runtime", {"save_minutes": 0.0, "device": "cpu"})):
        path = root / "cells" / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(content))
    words = ["train", "--spec", "cells/train.json", "--runtime", "cells/runtime.json", "--out", "out", "--state", "state",
             "--base", inputs / "base.json", "--problems", inputs / "problems.parquet",
             "--semifactuals", inputs / "semifactuals.parquet", "--log", "logs/train.log"]  # fmt: skip
    command = [sys.executable, "-m", "tokencredit.cli", *map(str, words)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


def digests(root: Path) -> dict[str, str]:
    return {name: file_digest(root / "out" / name) for name in SAME}


def check_message(said: str, where: str, reason: str = "No space left on device") -> None:
    """One message that says what, where, and what to do, and no more than a remark of the tracking beside it."""
    lines = [line.removeprefix("[train] ") for line in said.splitlines()]
    lines = [line for line in lines if line and "rollout" not in line]  # progress bars
    remarks = [line for line in lines if line.startswith("warning: tracking: ")]
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and len(remarks) <= 1, said
    assert where in errors[0] and reason in errors[0] and "run again" in errors[0]
    known = ("goes on from the checkpoint", "was finished")
    assert [x for x in lines if x not in errors + remarks and not any(k in x for k in known)] == [], said


def test_state_on_a_disk_that_grows_bit_by_bit(place: Path, inputs: Path, whole: dict[str, str]) -> None:
    """It is full in one place after the other: lease, logs, checkpoints, exports, outputs."""
    disk = Disk(place / "state", 64 * KB)
    reached = []
    for _ in range(30):
        code, said = train(place, inputs)
        if code == 0:
            break
        assert code == 2, said
        check_message(said, "state")
        assert not (place / "out" / "train.json").exists()
        reached.append(max((p.name for p in (place / "state").glob("step-*")), default=""))
        disk.grow(64 * KB)
    assert code == 0, said
    assert len(set(reached)) >= 3 and reached == sorted(reached)
    assert digests(place) == whole


def test_full_disk_under_everything(place: Path, inputs: Path, whole: dict[str, str]) -> None:
    """Results, log and event log too; freed by removing another's file."""
    disk = Disk(place, 400 * KB)
    code, said = train(place, inputs)
    assert code == 2, said
    check_message(said, "state")
    disk.grow(2048 * KB)
    with open(place / "ballast", "wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4 * KB)):
            pass
    code, said = train(place, inputs)
    assert code == 2, said
    check_message(said, "state")
    (place / "ballast").unlink()
    code, said = train(place, inputs)
    assert code == 0, said
    assert "goes on from the checkpoint of step" in said
    assert digests(place) == whole


def test_full_disk_at_the_end_costs_no_training(place: Path, inputs: Path, whole: dict[str, str]) -> None:
    """Only the folder of the outputs lies on the full disk."""
    disk = Disk(place / "out", 32 * KB)
    code, said = train(place, inputs)
    assert code == 2, said
    check_message(said, "out")
    disk.grow(2048 * KB)
    code, said = train(place, inputs)
    assert code == 0, said
    assert "was finished, its outputs are handed out again" in said
    assert digests(place) == whole


def test_read_only_disk(place: Path, inputs: Path, whole: dict[str, str]) -> None:
    """Refused before any work; a checkpoint that was there is gone on from afterwards."""
    place.mkdir()
    small = Disk(place / "state", 400 * KB)
    assert train(place, inputs)[0] == 2
    left = sorted(p.name for p in (place / "state").glob("step-*"))
    assert left
    mount(place, "bind", "--rbind", str(place))
    for folder in (place, place / "state"):
        mount(folder, "remount,bind,ro")
    code, said = train(place, inputs)
    assert code == 2, said
    check_message(said, "state", "Read-only file system")
    for folder in (place / "state", place):
        mount(folder, "remount,bind,rw")
    small.grow(4096 * KB)
    assert left == sorted(p.name for p in (place / "state").glob("step-*"))
    code, said = train(place, inputs)
    assert code == 0, said
    assert f"goes on from the checkpoint of step {int(left[-1][5:])}" in said
    assert digests(place) == whole

"""One job at a time on one thing; who is at work; what a retry and a job of a dead run do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.grid.conftest import FakeSlurm
from tokencredit.grid import runs
from tokencredit.grid.presence import at_work, holder, place
from tokencredit.study.errors import UserError

HOLD = """
import signal, sys, time
from pathlib import Path
from tokencredit.grid.presence import at_work
signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
with at_work(Path(sys.argv[1]), "train.a"):
    print("at work", flush=True)
    time.sleep(60)
"""


def working(root: Path, job: str) -> subprocess.Popen[str]:
    """A process that works on train.a as SLURM job `job`."""
    env = {**os.environ, "SLURM_JOB_ID": job}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "at work\n"
    return process


def close(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def lease(root: Path) -> Path:
    return place(root, "train.a") / "lease.json"


def refuse(root: Path, said: str) -> None:
    with at_work(root, "train.a"):
        raise UserError(said)


def test_who_is_at_work_is_seen_and_nobody_after_death(tmp_path: Path) -> None:
    process = working(tmp_path, "5")
    held = holder(lease(tmp_path))
    assert held
    assert (held["pid"], held["job"]) == (process.pid, "5")
    close(process)
    assert holder(lease(tmp_path)) is None


def test_a_second_job_on_the_same_thing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    process = working(tmp_path, "")
    try:
        with pytest.raises(UserError, match=f"held by process {process.pid}"):
            refuse(tmp_path, "-")
    finally:
        close(process)


def test_a_younger_slurm_job_has_the_older_one_leave(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = working(tmp_path, "5")
    slurm.says("scancel")
    (slurm.folder / "scancel").write_text(f"#!/bin/sh\necho scancel $* >> {slurm.folder}/calls\nkill {process.pid}\n")
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    try:
        with at_work(tmp_path, "train.a"):
            assert process.wait(10) == 85
        assert slurm.calls == ["scancel 5"]
    finally:
        close(process)


def test_an_older_slurm_job_leaves_the_younger_one_alone(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.says("scancel")
    process = working(tmp_path, "12")
    monkeypatch.setenv("SLURM_JOB_ID", "9")  # by number, not by text
    try:
        with pytest.raises(UserError, match="job 12"):
            refuse(tmp_path, "-")
        assert slurm.calls == []
    finally:
        close(process)


def test_a_holder_elsewhere_counts_for_two_minutes_after_its_last_sign(tmp_path: Path) -> None:
    path = lease(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "job": "5", "released": False}))
    assert holder(path)
    os.utime(path, (time.time() - 121,) * 2)
    assert holder(path) is None


def test_what_was_refused_is_not_worked_on_again_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    monkeypatch.setenv(runs.NAME, "first")
    with pytest.raises(UserError):
        refuse(tmp_path, "no such model")
    with pytest.raises(UserError, match=r"no such model \(said before"), at_work(tmp_path, "train.a"):
        done.append("retry")
    monkeypatch.setenv(runs.NAME, "second")  # the user has mended it and calls again
    with at_work(tmp_path, "train.a"):
        done.append("second run")
    assert done == ["second run"]


def run(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Begin a run in a process of its own and leave it dead; returns its name."""
    code = f"from tokencredit.grid import runs; print(runs.name_run()); runs.begin({str(root)!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_jobs_of_a_dead_run_leave_once_another_one_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_held", [])
    dead = run(tmp_path, monkeypatch)
    monkeypatch.setenv(runs.NAME, dead)
    assert not runs.superseded(str(tmp_path)), "as long as nobody has taken its place its jobs go on"
    mine = runs.name_run()
    runs.begin(str(tmp_path))
    assert not runs.superseded(str(tmp_path))
    monkeypatch.setenv(runs.NAME, dead)
    assert runs.superseded(str(tmp_path))
    run(tmp_path, monkeypatch)  # a third one: ours lives
    monkeypatch.setenv(runs.NAME, mine)
    assert not runs.superseded(str(tmp_path))
    for handle in runs._held:
        os.close(handle)

"""Leaving an allocation: when, with what code, and whether the job is put back into the queue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.grid.conftest import FakeSlurm
from tokencredit.grid.slurm import Allocation, Stay, allocation, wall_minutes
from tokencredit.study.errors import GoOn, UserError


def job(state: str = "RUNNING", comment: str = "rule_train_wildcards_a", minutes: float = 60) -> str:
    ends = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 60 * minutes))
    return f"JobId=7 JobName=x JobState={state} Requeue=1 EndTime={ends} Comment={comment}"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def in_job(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    slurm.says("scontrol", job())
    return slurm


def stay(work: Callable[[], object], state: Path | None = None, minutes: float | None = None) -> None:
    """A stage that does `work` and then would go on for long."""
    with Stay(minutes, state):
        work()
        time.sleep(5)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def go_on() -> None:
    raise GoOn


def requeued(slurm: FakeSlurm) -> bool:
    return "scontrol requeue 7" in slurm.calls


@pytest.mark.parametrize(
    ("left", "kept_back"),
    [(3600, 180), (60, 15), (360_000, 300)],  # 5 %, at least 15 s to save, at most 5 min
)
def test_time_to_save_is_kept_back(left: float, kept_back: float) -> None:
    minutes = wall_minutes(None, Allocation("7", "RUNNING", 1e9 + left, True), 1e9)
    assert minutes == pytest.approx((left - kept_back) / 60)


def test_the_shorter_budget_counts() -> None:
    found = Allocation("7", "RUNNING", 1e9 + 3600, True)
    assert wall_minutes(10.0, found, 1e9) == 10.0
    assert wall_minutes(600.0, found, 1e9) == pytest.approx(57.0)
    assert wall_minutes(10.0, None, 1e9) == 10.0
    assert wall_minutes(None, Allocation("7", "RUNNING", None, True), 1e9) is None


def test_outside_slurm_nothing_is_asked(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm.says("scontrol", job())
    assert allocation() is None
    with pytest.raises(GoOn):
        stay(terminate)
    assert slurm.calls == []


def test_a_job_that_is_asked_to_leave_goes_back_into_the_queue(in_job: FakeSlurm, state: Path) -> None:
    with pytest.raises(GoOn) as left:
        stay(terminate, state)
    assert left.value.code == 85
    assert requeued(in_job)


def test_a_job_that_was_cancelled_does_not(in_job: FakeSlurm, state: Path) -> None:
    def work() -> None:
        in_job.says("scontrol", job("CANCELLED"))
        raise GoOn

    with pytest.raises(GoOn):
        stay(work, state)
    assert not requeued(in_job)


def test_an_allocation_that_holds_more_than_this_stage_is_left_alone(in_job: FakeSlurm, state: Path) -> None:
    in_job.says("scontrol", job(comment="(null)"))
    with pytest.raises(GoOn):
        stay(go_on, state)
    assert not requeued(in_job)


@pytest.mark.parametrize("error", [UserError("mend it"), RuntimeError("our fault"), SystemExit(2)])
def test_what_failed_is_not_put_back(error: BaseException, in_job: FakeSlurm, state: Path) -> None:
    with pytest.raises(type(error)), Stay(None, state):
        raise error
    assert not requeued(in_job)


@pytest.mark.parametrize("progress", [True, False])
def test_at_the_time_limit_only_a_job_that_got_somewhere_goes_back(
    progress: bool, in_job: FakeSlurm, state: Path
) -> None:
    def work() -> None:
        (state / "lease.json").write_text("{}")
        if progress:
            (state / "shard-0").write_text("done")

    with pytest.raises(GoOn):
        stay(work, state, minutes=0.2 / 60)
    assert requeued(in_job) == progress


def test_a_scheduler_that_hangs_or_refuses_does_not_stop_the_leaving(in_job: FakeSlurm, state: Path) -> None:
    def work() -> None:
        in_job.says("scontrol", None)
        raise GoOn

    with pytest.raises(GoOn):
        stay(work, state)


def test_the_handler_that_was_there_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stay(None, None):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before

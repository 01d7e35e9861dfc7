"""A training job that loses its process at any moment ends as if nothing had happened."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import study
from tokencredit.grading import Verdict
from tokencredit.study import GoOn, UserError, load_study, specs
from tokencredit.study.config import Runtime
from tokencredit.training import run as training_run
from tokencredit.training.lease import Lease

SAME = ("metrics.parquet", "rollouts.parquet", "tokens.parquet", "step4/model.safetensors", "step8/model.safetensors")


class Events:
    def metrics(self, values: dict[str, float], step: int | None = None) -> None:
        pass


class ParityGrader:
    """Right where the response has an even number of characters: a random model then has something to learn."""

    def __init__(self, **_: Any):
        pass

    def __enter__(self) -> ParityGrader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def grade(self, items: list[Any]) -> list[Verdict]:
        return [Verdict(len(i.response) % 2 == 0, None, "", "ok", 0.0) for i in items]


class Killed(BaseException):
    """Stands for SIGKILL in process: nothing of the trainer's own code may run after it."""


@pytest.fixture
def go(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setattr(training_run, "Grader", ParityGrader)

    def run(root: Path, runtime: dict[str, Any] | None = None, **training: Any) -> Path:
        spec = specs(load_study(study(**training)))["train.m.scapo.seed0"]
        files = (inputs / name for name in ("base.json", "problems.parquet", "semifactuals.parquet"))
        values = Runtime(**({"save_minutes": 0.0, "device": "cpu"} | (runtime or {})))
        training_run.train(spec, *files, root / "out", root / "state", values, Events())
        return root / "out"

    return run


def digests(out: Path) -> dict[str, str]:
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in SAME}


@pytest.fixture
def whole(go: Callable[..., Path], tmp_path: Path) -> dict[str, str]:
    """The unbroken run."""
    found = digests(go(tmp_path / "whole"))
    assert len(set(found.values())) == len(SAME)
    return found


class Breaker:
    """Calls `action` in the middle of the n-th call of a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, at: int, action: Callable[[], None]):
        self.count = 0
        real = getattr(training_run, name)

        def broken(*a: Any, **k: Any) -> Any:
            self.count += 1
            if self.count == at:
                action()
            return real(*a, **k)

        monkeypatch.setattr(training_run, name, broken)


def die() -> None:
    raise Killed


@pytest.mark.parametrize("name", ["draw", "prepare", "update", "export"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_death_anywhere_changes_nothing(
    name: str, at: int, go: Callable[..., Path], whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Breaker(patch, name, at, die)
        if name == "export" and at == 3:
            pytest.skip("there are two exports")
        with pytest.raises(Killed):
            go(tmp_path)
    assert digests(go(tmp_path)) == whole


def test_death_while_a_checkpoint_is_written(
    go: Callable[..., Path], whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tokencredit.training.state as state

    with monkeypatch.context() as patch:
        calls = []

        def half(obj: Any, handle: Any) -> None:
            calls.append(1)
            if len(calls) == 2:
                handle.write(b"half")
                raise Killed
            torch.serialization.save(obj, handle)

        patch.setattr(state.torch, "save", half)
        with pytest.raises(Killed):
            go(tmp_path)
    assert digests(go(tmp_path)) == whole


def test_damaged_checkpoint_is_passed_over_and_said(
    go: Callable[..., Path], whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    with monkeypatch.context() as patch:
        Breaker(patch, "draw", 4, die)
        with pytest.raises(Killed):
            go(tmp_path)
    newest = sorted((tmp_path / "state").glob("step-*"))[-1] / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    assert digests(go(tmp_path)) == whole
    assert "damaged and was passed over" in caplog.text


def test_all_checkpoints_damaged_starts_anew(
    go: Callable[..., Path], whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Breaker(patch, "draw", 4, die)
        with pytest.raises(Killed):
            go(tmp_path)
    for path in (tmp_path / "state").glob("step-*/manifest.json"):
        path.write_text("{")
    assert digests(go(tmp_path)) == whole


def test_shortened_log_is_noticed(
    go: Callable[..., Path], whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Breaker(patch, "draw", 4, die)
        with pytest.raises(Killed):
            go(tmp_path)
    os.truncate(tmp_path / "state" / "metrics.jsonl", 10)
    assert digests(go(tmp_path)) == whole


def test_changed_spec_is_refused_with_its_keys(
    go: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Breaker(patch, "draw", 3, die)
        with pytest.raises(Killed):
            go(tmp_path)
    with pytest.raises(UserError, match=r"spec\.training\.optimizer\.lr"):
        go(tmp_path, optimizer={"lr": 3.0e-2, "warmup_steps": 2})


@pytest.mark.parametrize("name", ["draw", "update"])
def test_sigterm_saves_and_leaves_with_85(
    name: str, go: Callable[..., Path], whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rollout at once, in an update after it; nothing done is done again."""
    with monkeypatch.context() as patch:
        Breaker(patch, name, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(GoOn) as left:
            go(tmp_path, {"save_minutes": 60.0})
    assert left.value.code == 85
    assert [p.name for p in (tmp_path / "state").glob("step-*")] == ["step-00000004"]
    assert digests(go(tmp_path)) == whole


def test_wall_budget(go: Callable[..., Path], whole: dict[str, str], tmp_path: Path) -> None:
    left = 0
    for _ in range(20):
        try:
            out = go(tmp_path, {"wall_minutes": 1e-5, "save_minutes": 60.0})
            break
        except GoOn:
            left += 1
    else:
        pytest.fail("a job with a short budget never got anywhere")
    assert left >= 2
    assert digests(out) == whole


def test_full_disk(go: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokencredit.training.state as state

    calls = []

    def full(obj: Any, handle: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        torch.serialization.save(obj, handle)

    monkeypatch.setattr(state.torch, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*Earlier checkpoints are intact \(2, 4\)"):
        go(tmp_path)


def test_second_process_on_a_cell_is_refused(go: Callable[..., Path], tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom tokencredit.training.lease import Lease\n"
        "with Lease(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    (tmp_path / "state").mkdir()
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "state")], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(UserError, match=f"cell held by process {holder.pid} on"):
                go(tmp_path)
        finally:
            holder.kill()
    with Lease(tmp_path / "state") as lease:
        assert f"process {holder.pid}" in lease.taken_over


def test_live_lease_of_another_host_is_respected_and_a_stale_one_taken(tmp_path: Path) -> None:
    entry = {"host": "elsewhere", "pid": 1, "job": "77", "since": "now", "released": False}
    lease = tmp_path / "lease.json"
    lease.write_text(json.dumps(entry))
    with pytest.raises(UserError, match="process 1 on elsewhere, job 77"), Lease(tmp_path):
        pass
    os.utime(lease, (1, 1))
    with Lease(tmp_path) as taken:
        assert "elsewhere" in taken.taken_over
    with Lease(tmp_path) as again:
        assert again.taken_over == ""


def test_not_finite_names_cell_step_and_problems(
    go: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training_run.prepare

    def poisoned(*a: Any, **k: Any) -> Any:
        batch = real(*a, **k)
        batch.advantage = batch.advantage.clone()
        batch.advantage[batch.minibatches[0].learning[0][0]] = torch.nan
        return batch

    monkeypatch.setattr(training_run, "prepare", poisoned)
    with pytest.raises(training_run.NotFinite, match=r"m\.scapo\.seed0, optimisation step 1: .*problems p"):
        go(tmp_path)
    saved = torch.load(tmp_path / "state" / "failed-step1.pt", weights_only=True)
    assert len(saved["prompts"]) == 16

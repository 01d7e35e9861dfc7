"""The state folder alone: damage of every kind, and death at every single change of the file system."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tokencredit.training.state as module
from tokencredit.model.checkpoint import publish
from tokencredit.study import UserError
from tokencredit.training.state import AppendLog, StateFolder, storage

IDENTITY = {"spec": {"lr": 1.0}, "inputs": {"problems": "a"}}


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def logs_of(folder: Path) -> list[AppendLog]:
    return [AppendLog(folder / "metrics.jsonl"), AppendLog(folder / "rollouts.jsonl")]


def work(folder: Path, steps: list[int], identity: dict[str, Any] = IDENTITY) -> None:
    """A run up to the checkpoint of the last of `steps`, and a row beyond it."""
    state, logs = StateFolder(folder, identity), logs_of(folder)
    for step in [*steps, 99]:
        for log in logs:
            log.write([{"log": log.path.name, "step": step, "text": "é" * step}])
        if step != 99:
            state.save(step, {"step": step, "weights": torch.arange(step)}, logs)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a folder")


def shorter_log(newest: Path) -> None:
    """The manifest names a shorter log, as a flipped bit of its length would: rows would be lost in silence."""
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["logs"]["metrics.jsonl"]["bytes"] -= 1
    (newest / "manifest.json").write_text(json.dumps(manifest))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda p: os.truncate(p / "state.pt", 100),
    "empty": lambda p: os.truncate(p / "state.pt", 0),
    "missing": lambda p: (p / "state.pt").unlink(),
    "bits flipped": lambda p: flip(p / "state.pt", 200),
    "a folder in its place": lambda p: to_folder(p / "state.pt"),
    "a file in place of the folder": to_file,
    "an empty folder": lambda p: [f.unlink() for f in p.iterdir()],
    "manifest not JSON": lambda p: (p / "manifest.json").write_text("{"),
    "manifest no text": lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"),
    "manifest of another kind": lambda p: (p / "manifest.json").write_text("[1]"),
    "manifest a folder": lambda p: to_folder(p / "manifest.json"),
    "manifest changed": shorter_log,
    "log cut": lambda p: os.truncate(p.parent / "metrics.jsonl", (p.parent / "metrics.jsonl").stat().st_size - 300),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_checkpoint_is_passed_over(kind: str, tmp_path: Path) -> None:
    work(tmp_path, [2, 40, 60])
    DAMAGE[kind](tmp_path / "step-00000060")
    state, logs = StateFolder(tmp_path, IDENTITY), logs_of(tmp_path)
    loaded, remarks = state.load(logs)
    assert loaded is not None and torch.equal(loaded["weights"], torch.arange(40))
    assert len(remarks) == 1 and "checkpoint of step 60 is damaged and was passed over" in remarks[0]
    for log in logs:
        assert [row["step"] for row in log.read()] == [2, 40]
    state.save(80, {"step": 80}, logs)  # the damaged one is dropped, and not the valid one before it
    assert state.steps() == [40, 80]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_checkpoint_is_replaced(kind: str, tmp_path: Path) -> None:
    work(tmp_path, [40, 60])
    DAMAGE[kind](tmp_path / "step-00000060")
    state, logs = StateFolder(tmp_path, IDENTITY), logs_of(tmp_path)
    state.load(logs)
    state.save(60, {"step": 61}, logs)
    again, remarks = StateFolder(tmp_path, IDENTITY).load(logs_of(tmp_path))
    assert again == {"step": 61} and remarks == []


def test_flipped_bit_in_a_log_is_noticed(tmp_path: Path) -> None:
    work(tmp_path, [2, 40, 60])
    flip(tmp_path / "metrics.jsonl", (tmp_path / "metrics.jsonl").stat().st_size - 300)  # a row of step 60
    loaded, remarks = StateFolder(tmp_path, IDENTITY).load(logs_of(tmp_path))
    assert loaded is not None and loaded["step"] == 40
    assert "metrics.jsonl does not have the digest" in remarks[0]


def test_folders_of_other_names_are_left_alone(tmp_path: Path) -> None:
    work(tmp_path, [40])
    shutil.copytree(tmp_path / "step-00000040", tmp_path / "step-00000040.copy")
    state = StateFolder(tmp_path, IDENTITY)
    assert state.steps() == [40]
    assert state.load(logs_of(tmp_path))[0]


def test_damaged_identity_is_refused(tmp_path: Path) -> None:
    work(tmp_path, [40])
    os.truncate(tmp_path / "identity.json", 5)
    with pytest.raises(UserError, match=r"identity\.json, which is damaged.*delete that folder"):
        StateFolder(tmp_path, IDENTITY)


def test_the_checkpoint_gone_on_from_is_not_written_again(tmp_path: Path) -> None:
    """Asked to leave while it still loads, a job must not replace the one good checkpoint."""
    work(tmp_path, [40])
    state, logs = StateFolder(tmp_path, IDENTITY), logs_of(tmp_path)
    state.load(logs)
    before = (tmp_path / "step-00000040").stat().st_ino
    state.save(40, {"step": 40}, logs)
    assert (tmp_path / "step-00000040").stat().st_ino == before


def test_storage_passes_on_what_is_no_matter_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage(tmp_path):
        (tmp_path / "nothing").read_text()


# --- the end ----------------------------------------------------------------------------------------------------


def export(folder: Path) -> None:
    for step in (40, 60):
        path = folder / "exports" / f"step{step}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "model.safetensors").write_text(f"weights {step}")
        (path / "checkpoint.json").write_text("{}")


def finish(state: StateFolder, out: Path) -> None:
    """As the trainer does it."""
    final = state.start_final()
    for step in (40, 60):
        publish(state.folder / "exports" / f"step{step}", final / f"step{step}")
    (final / "metrics.parquet").write_text("metrics")
    (final / "train.json").write_text("{}")
    state.hand_out(out)


OUTPUTS = {
    "metrics.parquet",
    "train.json",
    *(f"step{s}/{n}" for s in (40, 60) for n in ("checkpoint.json", "model.safetensors")),
}


def outputs(out: Path) -> set[str]:
    return {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [True, False], ids=["outputs deleted", "outputs left"])
def test_death_at_any_change_while_finishing(deleted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment are both the checkpoints and the finished outputs incomplete."""
    deaths = 0
    for at in range(1, 500):
        folder, out = tmp_path / f"{at}" / "state", tmp_path / f"{at}" / "out"
        work(folder, [40, 60])
        export(folder)
        state, logs = StateFolder(folder, IDENTITY), logs_of(folder)
        state.load(logs)
        with monkeypatch.context() as patch:
            left = [at]
            for name in ("link", "rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
                patch.setattr(os, name, dying(getattr(os, name), left))
            try:
                finish(state, out)
                break
            except Killed:
                deaths += 1
        if deleted:  # by Snakemake, as the job failed
            shutil.rmtree(out, ignore_errors=True)
        state = StateFolder(folder, IDENTITY)
        if state.sealed:
            state.hand_out(out)
        else:
            loaded, remarks = state.load(logs_of(folder))
            assert loaded is not None and loaded["step"] == 60 and remarks == []
            finish(state, out)
        assert outputs(out) == OUTPUTS, at
        assert sorted(p.name for p in folder.iterdir()) == ["final", "final.json", "identity.json"]
    assert deaths > 40


def dying(real: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return real(*args, **more)

    return call


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder of state whose run was finished."""
    folder = tmp_path / "state"
    work(folder, [40, 60])
    export(folder)
    finish(StateFolder(folder, IDENTITY), tmp_path / "out")
    return folder


def test_finished_run_is_handed_out_again_and_takes_no_space(finished: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or path.stat().st_nlink == 2
    shutil.rmtree(tmp_path / "out")
    state = StateFolder(finished, IDENTITY)
    assert state.sealed
    state.hand_out(tmp_path / "out")
    assert outputs(tmp_path / "out") == OUTPUTS


def test_finished_run_of_other_settings_makes_room_and_protects_what_follows(finished: Path) -> None:
    other = {"spec": {"lr": 2.0}, "inputs": {"problems": "a"}}
    assert not StateFolder(finished, other).sealed
    work(finished, [40], other)
    with pytest.raises(UserError, match=r"spec\.lr"):
        StateFolder(finished, IDENTITY)


@pytest.mark.parametrize("what", ["code", "damage"])
def test_finished_run_that_cannot_be_vouched_for_is_done_anew(
    what: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "code":
        monkeypatch.setattr(module, "code_hash", lambda: "other")
    else:
        flip(finished / "final" / "step60" / "model.safetensors", 3)
    state = StateFolder(finished, IDENTITY)
    assert not state.sealed
    assert state.load(logs_of(finished)) == (None, [])

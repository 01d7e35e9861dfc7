"""The command line: exit codes, where messages go, and what a stage leaves in its event log."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokencredit.cli import main
from tokencredit.study.errors import GoOn, UserError
from tokencredit.tracking.events import read_run

Stage = Callable[..., None]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study's results folder with the spec of one stage."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cells = tmp_path / "s" / "cells"
    cells.mkdir(parents=True)
    (cells / "problems.easy.json").write_text(json.dumps({"stage": "problems", "seed": 1, "source": {"size": 4}}))
    (cells / "runtime.json").write_text(json.dumps({"threads": 1}))
    return tmp_path / "s"


def run(place: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage) -> int:
    """Run `tokencredit problems` with `stage` in place of the real one; returns the exit code."""
    monkeypatch.setitem(sys.modules, "tokencredit.problems.stages", SimpleNamespace(build_problems=stage))
    words = ["problems", "--spec", place / "cells" / "problems.easy.json", "--output", place / "easy.txt"]
    words += ["--record", place / "easy.json", "--runtime", place / "cells" / "runtime.json"]
    words += ["--cell", "easy", "--log", place / "easy.log"]
    try:
        return main([str(w) for w in words])
    except SystemExit as leaving:
        return int(leaving.code or 0)


def events(place: Path) -> Any:
    return read_run(place / "events" / "problems.easy.jsonl")


def test_stage_gets_its_files_and_leaves_a_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(spec: dict[str, Any], output: Path, record: Path) -> None:
        assert spec["source"] == {"size": 4}
        assert os.environ["OMP_NUM_THREADS"] == "1"
        logging.getLogger("tokencredit.somewhere").info("four problems")
        output.write_text("table")
        record.write_text(json.dumps({"seconds": {"build": 0.5}, "counts": {"rows": 4}, "spec": spec}))

    assert run(place, monkeypatch, stage) == 0
    got = events(place)
    assert (got.status, got.tags["study"], got.tags["stage"], got.tags["cell"]) == ("FINISHED", "s", "problems", "easy")
    assert len(got.tags["spec_hash"]) == 16
    assert got.params == {"seed": "1", "source.size": "4"}
    assert {k: v for (k, _), (v, _) in got.metrics.items()} == {"seconds/build": 0.5, "counts/rows": 4.0}
    assert sorted(got.artifacts) == ["easy.json", "easy.txt"]
    assert "four problems" in (place / "easy.log").read_text()
    assert "[problems easy] four problems" in capsys.readouterr().err


def failing(error: BaseException) -> Stage:
    def stage(*_: Any) -> None:
        raise error

    return stage


@pytest.mark.parametrize(
    ("error", "code", "status", "trace"),
    [
        (UserError("benchmarks.easy: no rows"), 2, "FAILED", False),
        (RuntimeError("our fault"), 1, "FAILED", True),
        (GoOn(), 85, "SCHEDULED", False),
    ],
)
def test_exit_code_message_and_status(
    error: BaseException,
    code: int,
    status: str,
    trace: bool,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(place, monkeypatch, failing(error)) == code
    assert events(place).status == status
    shown, logged = capsys.readouterr().err, (place / "easy.log").read_text()
    for text in (shown, logged):
        assert ("Traceback" in text) == trace
        if code != 85:
            assert text.count(str(error)) == 1


def test_spec_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["problems", "--spec", str(tmp_path / "no.json"), "--output", "o", "--record", "r"]
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"tokencredit problems: {tmp_path / 'no.json'}: cannot be read (No such file or directory)"
    ]


def test_failed_job_runs_again_and_its_run_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(place, monkeypatch, failing(GoOn()))

    def stage(spec: dict[str, Any], output: Path, record: Path) -> None:
        output.write_text("")
        record.write_text("{}")

    assert run(place, monkeypatch, stage) == 0
    assert (events(place).status, events(place).sessions) == ("FINISHED", 2)


def test_command_without_arguments_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    for name in ("problems", "train", "evaluate", "report", "track", "grade", "check"):
        assert name in out

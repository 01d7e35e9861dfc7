"""The event log: what a job writes is what is read back, whatever happened to the job."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tokencredit.study.errors import GoOn
from tokencredit.tracking.events import EventLog, flatten, read_run

TAGS = {"study": "s", "stage": "train", "cell": "m.grpo.seed0", "spec_hash": "h1"}


def test_what_is_logged_is_read_back(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    with EventLog(tmp_path / "e.jsonl", TAGS) as log:
        log.params({"optimizer": {"lr": 1e-4}, "credit": [{"kind": "margin", "low": 0.2}], "seeds": [0, 1]})
        log.metrics({"loss": 0.5, "absent": None, "inf": math.inf}, step=3)
        log.artifact(table)
    run = read_run(tmp_path / "e.jsonl")
    assert run.tags == TAGS
    assert run.params == {
        "optimizer.lr": "0.0001",
        "credit.0.kind": "margin",
        "credit.0.low": "0.2",
        "seeds": "[0, 1]",
    }
    assert {k: v for k, (v, _) in run.metrics.items()} == {("loss", 3): 0.5, ("inf", 3): math.inf}
    assert run.artifacts["table.csv"]["bytes"] == 8
    assert run.artifacts["table.csv"]["copy"]
    assert (run.status, run.sessions, run.damaged) == ("FINISHED", 1, 0)


def test_resumed_job_goes_on_and_its_last_value_counts(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    first = EventLog(path, TAGS)
    first.params({"lr": 1})
    for step in range(5):
        first.metrics({"loss": step}, step)
    with EventLog(path, TAGS) as second:  # from the checkpoint of step 3
        second.params({"lr": 2})
        second.metrics({"loss": 30.0}, 3)
        second.metrics({"loss": 40.0}, 4)
    run = read_run(path)
    assert [run.metrics["loss", s][0] for s in range(5)] == [0, 1, 2, 30, 40]
    assert run.params == {"lr": "1"}, "a param is logged once"
    assert run.sessions == 2


def test_half_a_line_of_a_killed_job_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = EventLog(path, TAGS)
    log.metrics({"loss": 1.0}, 1)
    log.metrics({"loss": 2.0}, 2)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with EventLog(path, TAGS) as resumed:
            resumed.metrics({"loss": 3.0}, 3)
        run = read_run(path)
        assert run.status == "FINISHED"
        assert run.tags == TAGS
        assert run.metrics["loss", 3][0] == 3.0
        assert run.damaged <= 1


def test_another_spec_begins_another_log(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with EventLog(path, TAGS) as log:
        log.metrics({"loss": 1.0}, 1)
    with EventLog(path, {**TAGS, "spec_hash": "h2"}):
        pass
    assert read_run(path).metrics == {}
    assert read_run(path).tags["spec_hash"] == "h2"


@pytest.mark.parametrize(
    ("error", "status"),
    [(GoOn(), "SCHEDULED"), (ValueError(), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(2), "FAILED")],
)
def test_status_of_a_job_that_ends_otherwise(tmp_path: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), EventLog(tmp_path / "e.jsonl", TAGS):
        raise error
    assert read_run(tmp_path / "e.jsonl").status == status


def test_job_that_died_reads_as_killed_and_a_living_one_as_running(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    EventLog(path, TAGS)
    assert read_run(path).status == "RUNNING"  # this process has it open
    path.unlink()
    code = f"from tokencredit.tracking import EventLog; EventLog({str(path)!r}, {TAGS!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert read_run(path).status == "KILLED"


def test_weights_and_large_files_are_linked_not_copied(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"w" * 10)
    (tmp_path / "large.csv").write_bytes(b"x" * (2 << 20))
    with EventLog(tmp_path / "e.jsonl", TAGS) as log:
        log.artifact(tmp_path / "model.safetensors", "step8/model.safetensors")
        log.artifact(tmp_path / "large.csv")
        log.artifact(tmp_path / "large.csv", "linked.csv", link=True)
        log.artifact(tmp_path / "absent.csv")
    run = read_run(tmp_path / "e.jsonl")
    assert sorted(run.artifacts) == ["large.csv", "linked.csv", "step8/model.safetensors"]
    assert not any(a["copy"] for a in run.artifacts.values())
    assert log.lost == 1


def test_log_that_cannot_be_written_never_stops_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    with EventLog(tmp_path / "file" / "e.jsonl", TAGS) as log:
        log.metrics({"loss": 1.0})
        log.metrics({"loss": 2.0})
    assert log.lost == 4
    assert capsys.readouterr().err.count("warning") == 1


def test_no_path_no_log() -> None:
    with EventLog(None) as log:
        log.metrics({"loss": 1.0})
    assert log.lost == 0


def test_importing_the_log_does_not_import_mlflow() -> None:
    code = "import sys, tokencredit.tracking, tokencredit.cli; print(sorted(sys.modules))"
    names = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    for heavy in ("mlflow", "torch", "transformers", "datasets", "pandas", "matplotlib"):
        assert f"'{heavy}'" not in names


def test_flatten_keeps_plain_lists_and_numbers_maps() -> None:
    assert flatten({"a": [{"x": 1}, {"x": 2}], "b": {"c": {}}, "d": ["p", "q"]}) == {
        "a.0.x": 1,
        "a.1.x": 2,
        "d": ["p", "q"],
    }


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with EventLog(path, TAGS) as log:
        log.metrics({"nan": math.nan}, 1)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

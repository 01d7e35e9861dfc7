"""What `tokencredit status` says of a results folder, state by state, and how long it takes for a thousand cells."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.conftest import ROOT, SMALL
from tokencredit.cli import main
from tokencredit.grid.presence import at_work, place
from tokencredit.grid.status import Found, Job, Status, jobs, look
from tokencredit.study import layout, load_study
from tokencredit.study.files import overlay, read_yaml
from tokencredit.study.provenance import code_hash
from tokencredit.tracking import EventLog

OWN = overlay(SMALL, {"analyses": {"panel": {"problems": "noop", "policies": ["base", "grpo"]}}})
OWN["grid"] = {**OWN["grid"], "analyses": ["panel"]}
MCPO = "train.scratch.mcpo.seed1"


def study(**changes: Any) -> Any:
    return load_study(overlay(overlay(read_yaml(ROOT / "config.yaml"), OWN), changes))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def finish(job: Job, folder: Path, code: str = "") -> None:
    """The record that a job leaves, and inputs that no record stands for."""
    for path in map(folder.joinpath, job.inputs):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(path))
    record = folder / job.record
    record.parent.mkdir(parents=True, exist_ok=True)
    made = {"inputs": {path: digest(folder / path) for path in job.inputs}, "code": code or code_hash()}
    record.write_text(json.dumps({"spec": job.spec, "provenance": made}))


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    for job in jobs(study(), layout(study())):
        finish(job, tmp_path)
    return tmp_path


@pytest.fixture
def root(finished: Path) -> Path:
    return finished / "results" / "small"


def found(status: Status, name: str) -> Found:
    (one,) = [one for one in status.found if one.job.name == name]
    return one


def others(status: Status, *names: str) -> set[str]:
    return {one.state for one in status.found if one.job.name not in names}


def test_everything_done(finished: Path) -> None:
    counts = look(study(), finished).counts()
    # 2 benchmarks and the training problems; semifactuals of training and of the analysed benchmark; 4 methods x 2
    # seeds; the base on both benchmarks, `easy` twice and `noop` once a cell; the panel of the base and of GRPO
    assert {stage: dict(count) for stage, count in counts.items()} == {
        "problems": {"done": 3},
        "semifactuals": {"done": 2},
        "base": {"done": 1},
        "train": {"done": 8},
        "evaluate": {"done": 2 + 8 * 3},
        "analyse": {"done": 2},
        **{stage: {"done": 1} for stage in ("overlap", "aggregate", "report", "track")},
    }


def test_nothing_done(tmp_path: Path) -> None:
    assert {one.state for one in look(study(), tmp_path).found} == {"missing"}


def test_an_edited_setting_is_named(finished: Path) -> None:
    change = {"methods": {"mcpo": {"credit": [{"kind": "margin", "low": 0.3, "high": 0.8}]}}}
    status = look(study(**change), finished)
    assert found(status, MCPO).state == "stale"
    assert found(status, MCPO).reason == "settings differ: credit_method.credit"
    assert others(status, MCPO, "train.scratch.mcpo.seed0") == {"done"}


def test_a_changed_input_is_named(finished: Path, root: Path) -> None:
    (root / "problems" / "bench" / "noop.parquet").write_text("other problems")
    status = look(study(), finished)
    stale = [one for one in status.found if one.state == "stale" and not one.job.dated]
    assert Counter(one.job.stage for one in stale) == {"evaluate": 1 + 8, "semifactuals": 1, "analyse": 2, "overlap": 1}
    assert {one.reason for one in stale} == {"input has changed: results/small/problems/bench/noop.parquet"}
    assert found(status, "report.all").state == found(status, "track.all").state == "stale"


def test_summaries_are_older_or_younger_than_what_they_are_made_of(finished: Path, root: Path) -> None:
    """Their files hold no record of their inputs: as for make, time decides, and the settings that were used."""
    sample = root / "eval/scratch/mcpo/seed1/step80/easy.parquet"
    os.utime(sample, (time.time() + 5,) * 2)
    status = look(study(), finished)
    assert found(status, "aggregate.all").reason == f"older than {sample.relative_to(finished)}"
    (root / "analysis" / "summary.csv").unlink()
    assert found(look(study(), finished), "aggregate.all").state == "missing"


def test_a_summary_by_other_settings(finished: Path, root: Path) -> None:
    (root / "cells").mkdir()
    old = {**next(j.spec for j in jobs(study(), layout(study())) if j.stage == "aggregate"), "study": "another"}
    (root / "cells" / "aggregate.json").write_text(json.dumps(old))
    assert found(look(study(), finished), "aggregate.all").reason == "settings differ: study"


def test_a_new_seed_is_missing_and_nothing_else(finished: Path) -> None:
    status = look(study(grid={"seeds": [0, 1, 2]}), finished)
    cells = [one for one in status.found if not one.job.dated]
    assert all(one.state == ("missing" if one.job.column == "2" else "done") for one in cells)
    assert found(status, "aggregate.all").reason.startswith("16 of ")  # 12 samples, 4 metrics
    assert found(status, "report.all").reason == "aggregate.all is not done"
    assert found(status, "track.all").reason == "report.all is not done"
    assert status.counts()["train"] == {"done": 8, "missing": 4}


def test_other_code_is_counted_and_makes_nothing_stale(finished: Path) -> None:
    for job in jobs(study(), layout(study())):
        if job.stage == "train":
            finish(job, finished, code="of old")
    status = look(study(), finished)
    assert {one.state for one in status.found} == {"done"}
    assert sum(one.other_code for one in status.found) == 8


@pytest.mark.parametrize(
    ("close", "state", "reason"),
    [
        ("FAILED", "failed", "NotFinite: loss is nan"),
        ("SCHEDULED", "saved", "goes on where it was left"),
        ("KILLED", "saved", "goes on where it was left"),
        (None, "saved", "its process was killed"),
    ],
)
def test_the_last_words_of_a_job_without_a_result(
    close: str | None, state: str, reason: str, finished: Path, root: Path
) -> None:
    (root / "train" / "scratch" / "mcpo" / "seed1" / "train.json").unlink()
    (root / "logs").mkdir()
    (root / "logs" / f"{MCPO}.log").write_text("Traceback\nNotFinite: loss is nan\n\n")
    log = EventLog(root / "events" / f"{MCPO}.jsonl", {"spec_hash": "h"})
    log.metrics({"loss": 1.0}, 1)
    if close:
        log.close(close)
    status = look(study(), finished)
    assert (found(status, MCPO).state, found(status, MCPO).reason) == (state, reason)


def test_a_refusal_says_what_to_mend(finished: Path, root: Path) -> None:
    (root / "train" / "scratch" / "mcpo" / "seed1" / "train.json").unlink()
    place(root, MCPO).mkdir(parents=True)
    (place(root, MCPO) / "refused").write_text("run\nno such model\nsecond line")
    assert found(look(study(), finished), MCPO).reason == "no such model"


def test_a_job_at_work_is_running(finished: Path, root: Path) -> None:
    with at_work(root, MCPO):
        one = found(look(study(), finished), MCPO)
    assert one.state == "running"
    assert f"process {os.getpid()} on" in one.reason
    assert found(look(study(), finished), MCPO).state == "done"


def test_a_damaged_record_is_stale(finished: Path, root: Path) -> None:
    (root / "train" / "scratch" / "mcpo" / "seed1" / "train.json").write_text('{"spec": {')
    assert found(look(study(), finished), MCPO).state == "stale"


def test_text_and_page(finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(finished)
    config = copy.deepcopy(OWN)
    config["methods"]["mcpo"] = {"credit": [{"kind": "margin", "low": 0.3, "high": 0.8}]}
    Path("study.yaml").write_text(yaml.safe_dump(config))
    assert main(["status", "study.yaml", "--base", str(ROOT / "config.yaml"), "--html", "status.html"]) == 0
    out = capsys.readouterr().out
    assert "stale: train.scratch.mcpo.seed1: settings differ: credit_method.credit" in out
    (row,) = [line for line in out.splitlines() if line.split()[:1] == ["train"]]
    assert row.split() == ["train", "6", ".", ".", ".", "2", "."]
    page = Path("status.html").read_text()
    assert page.count("title='1 stale: settings differ") == 2
    assert page.count("title='1 done'") == 6 + 2  # training runs, and the panels of the base and of GRPO
    for name in ("http://", "https://", "<script"):
        assert name not in page


@pytest.mark.slow
def test_a_thousand_cells_in_five_seconds(tmp_path: Path) -> None:
    grid = {
        "methods": ["grpo", "mcpo", "scapo", "mcpo_wide"],
        "seeds": list(range(250)),
        "benchmarks": ["easy", "noop"],
    }
    large = study(grid=grid)
    every = list(jobs(large, layout(large)))
    for job in every:
        finish(job, tmp_path)
    begun, used = time.perf_counter(), time.process_time()
    status = look(large, tmp_path)
    wall, used = time.perf_counter() - begun, time.process_time() - used
    print(f"{len(every)} jobs: {wall:.2f} s, {used:.2f} s of CPU")
    assert status.counts()["train"] == {"done": 1000}
    assert used < 5

"""The smoke study from nothing to its report, twice, in two folders. Minutes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import ROOT, Folder
from tokencredit.cli import main
from tokencredit.study import Study, analyses, cells, evaluations, load_study
from tokencredit.study.files import overlay, read_yaml
from tokencredit.study.provenance import file_digest

pytestmark = pytest.mark.e2e
CONFIG = ROOT / "workflow" / "studies" / "smoke.yaml"


def smoke(folder: Folder, *words: str) -> str:
    """Call Snakemake on the smoke study in `folder`; returns what it said."""
    env = {"MLFLOW_TRACKING_URI": ""}
    done = folder.snakemake("--configfile", str(CONFIG), "--cores", "2", *words, env=env, timeout=900)
    assert done.code == 0, done.text[-6000:]
    return done.text


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(overlay(read_yaml(ROOT / "config.yaml"), read_yaml(CONFIG)))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """As `make reproduce` runs it. The call ends with its last job: a profile has once made it wait for an hour."""
    folder = Folder(tmp_path_factory.mktemp("first"))
    profile = str(ROOT / "workflow" / "profiles" / "default")
    folder.text = smoke(folder, "--workflow-profile", profile)  # type: ignore[attr-defined]
    return folder


def results(folder: Folder) -> Path:
    return folder.path / "results" / "smoke"


def test_report_and_tables_are_there(first: Folder, study: Study) -> None:
    page = (results(first) / "report.html").read_text()
    assert study.title in page
    for cell in cells(study):
        assert (results(first) / "train" / cell.folder / "train.json").exists()
    for name in ("summary", "paired", "curves", "grading"):
        assert (results(first) / "analysis" / f"{name}.csv").stat().st_size > 0


def test_jobs_show_their_progress(first: Folder) -> None:
    text = first.text  # type: ignore[attr-defined]
    assert "[base scratch]" in text
    assert "[train scratch.grpo.seed0]" in text


def test_second_call_does_nothing_and_says_so(first: Folder) -> None:
    assert "Nothing to be done" in smoke(first)


def test_store_holds_one_run_per_stage_and_cell(first: Folder, study: Study) -> None:
    from tokencredit.tracking.store import client

    mlflow = client(f"sqlite:///{results(first) / 'mlflow.db'}")
    experiment = mlflow.get_experiment_by_name("tokencredit/smoke").experiment_id
    runs = mlflow.search_runs([experiment], max_results=1000)
    assert Counter(r.data.tags["stage"] for r in runs) == {
        "study": 1,
        "problems": 1 + len(study.grid.benchmarks),
        "semifactuals": 1,
        "base": len(study.grid.models),
        "train": len(cells(study)),
        "evaluate": sum(1 for _ in evaluations(study)),
        "analyse": sum(1 for _ in analyses(study)),
        "overlap": 1,
        "aggregate": 1,
        "report": 1,
    }
    parent = next(r for r in runs if r.data.tags["stage"] == "study")
    for run in runs:
        assert run.info.status == "FINISHED"
        if run is not parent:
            assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert mlflow.list_artifacts(run.info.run_id)
    train = next(r for r in runs if r.info.run_name == "train scratch.mcpo.seed1")
    cell = {"model": "scratch", "method": "mcpo", "seed": "1"}
    assert {k: train.data.tags[k] for k in cell} == cell
    assert train.data.params["credit_method.credit.0.kind"] == "margin"
    assert len(mlflow.get_metric_history(train.info.run_id, "loss")) == study.training.steps
    receipt = json.loads((results(first) / "tracking.json").read_text())
    assert receipt["errors"] == []
    assert main(["track", "sync", "--results", str(results(first))]) == 0
    assert len(mlflow.search_runs([experiment], max_results=1000)) == len(runs)


def test_more_seeds_would_run_their_cells_alone(first: Folder) -> None:
    done = first.plan(overlay(read_yaml(CONFIG), {"grid": {"seeds": [0, 1, 2]}}))
    assert done.rules["train"] == 6
    assert all("seed=2" in job for job in done.jobs if job.startswith(("train ", "evaluate ")))


def test_snakemake_report_is_made(first: Folder) -> None:
    smoke(first, "--report", "snakemake-report.html")
    assert (first.path / "snakemake-report.html").stat().st_size > 100_000


def test_a_clean_run_elsewhere_gives_the_same_bytes(first: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    second = Folder(tmp_path_factory.mktemp("second"))
    smoke(second)
    ours, theirs = digests(results(first)), digests(results(second))
    assert ours.keys() == theirs.keys()
    assert sorted(name for name in ours if ours[name] != theirs[name]) == []
    assert "analysis/summary.csv" in ours
    assert any(name.endswith(".safetensors") for name in ours)


def digests(root: Path) -> dict[str, Any]:
    """Digest of every file that promises equal bytes: tables, figures, weights; not clocks, records and stores."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        promised = path.suffix in (".parquet", ".csv", ".tex", ".svg", ".png", ".safetensors")
        clock = path.stem in ("timings", "timing") or path.stem.startswith("time_")
        if path.is_file() and promised and not clock and not name.startswith(("mlartifacts", "state")):
            found[name] = file_digest(path)
    return found

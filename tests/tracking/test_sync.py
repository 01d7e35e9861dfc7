"""The sync: an MLflow store that holds each run, param and metric once, however often and after whatever."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokencredit.cli import main
from tokencredit.tracking.events import EventLog
from tokencredit.tracking.live import Live
from tokencredit.tracking.store import StoreError, shown
from tokencredit.tracking.sync import sync

pytestmark = pytest.mark.slow  # MLflow alone takes seconds to import and to lay out a store


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A fresh SQLite store, laid out once and copied."""
    from tokencredit.tracking.store import client

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    client(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def results(tmp_path: Path, empty_store: bytes) -> Iterator[Path]:
    folder = tmp_path / "results" / "s"
    folder.mkdir(parents=True)
    (folder / "mlflow.db").write_bytes(empty_store)
    return folder


def job(results: Path, cell: str, values: dict[int, float], spec: str = "h1", status: str = "FINISHED") -> None:
    tags = {"study": "s", "stage": "train", "cell": cell, "spec_hash": spec, "method": "grpo"}
    with EventLog(results / "events" / f"train.{cell}.jsonl", tags) as log:
        log.params({"lr": 0.1})
        for step, value in values.items():
            log.metrics({"avg@16": value}, step)
        log.artifact(Path(__file__), "script.txt", link=True)
        log.close(status)


def stored(results: Path) -> dict[str, Any]:
    """Run name -> run, of every run that is not deleted."""
    from tokencredit.tracking.store import client

    mlflow = client(f"sqlite:///{results / 'mlflow.db'}")
    experiment = mlflow.get_experiment_by_name("tokencredit/s")
    runs = mlflow.search_runs([experiment.experiment_id])
    for run in runs:
        run.history = mlflow.get_metric_history(run.info.run_id, "avg_16")
    names = [run.info.run_name for run in runs]
    assert len(set(names)) == len(names), "a run stands there twice"
    return {run.info.run_name: run for run in runs}


def test_runs_are_nested_and_a_second_sync_changes_nothing(results: Path) -> None:
    job(results, "a", {1: 0.1, 2: 0.2})
    job(results, "b", {1: 0.3})
    assert sync(results).created == 2
    before = stored(results)
    receipt = sync(results)
    assert (receipt.created, receipt.updated, receipt.remade, receipt.unchanged) == (0, 0, 0, 2)
    after = stored(results)
    assert sorted(after) == ["s", "train a", "train b"]
    for name, run in after.items():
        assert run.info.run_id == before[name].info.run_id
        assert run.info.status == "FINISHED"
    run = after["train a"]
    assert run.data.tags["mlflow.parentRunId"] == after["s"].info.run_id
    assert run.data.tags["method"] == "grpo"
    assert run.data.params == {"lr": "0.1"}
    assert [(m.step, m.value) for m in run.history] == [(1, 0.1), (2, 0.2)]


def test_resumed_job_adds_its_new_steps_to_its_run(results: Path) -> None:
    job(results, "a", {1: 0.1, 2: 0.2}, status="SCHEDULED")
    sync(results)
    first = stored(results)
    assert first["train a"].info.status == "SCHEDULED"
    job(results, "a", {2: 0.2, 3: 0.3})  # from the checkpoint of step 1
    assert sync(results).updated == 1
    run = stored(results)["train a"]
    assert run.info.run_id == first["train a"].info.run_id
    assert run.info.status == "FINISHED"
    assert [(m.step, m.value) for m in run.history] == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_value_that_changed_after_it_was_sent_makes_the_run_anew(results: Path) -> None:
    job(results, "a", {1: 0.1, 2: 0.2})
    sync(results)
    job(results, "a", {1: 0.5})
    assert sync(results).remade == 1
    assert {(m.step, m.value) for m in stored(results)["train a"].history} == {(1, 0.5), (2, 0.2)}


def test_edited_spec_is_another_run_and_the_old_one_says_so(results: Path) -> None:
    from tokencredit.tracking.store import client

    job(results, "a", {1: 0.1})
    sync(results)
    job(results, "a", {1: 0.7}, spec="h2")
    assert sync(results).created == 1
    mlflow = client(f"sqlite:///{results / 'mlflow.db'}")
    experiment = mlflow.get_experiment_by_name("tokencredit/s").experiment_id
    runs = mlflow.search_runs([experiment], "tags.cell = 'a'")
    assert {r.data.tags["spec_hash"]: r.data.tags["tokencredit.current"] for r in runs} == {
        "h1": "false",
        "h2": "true",
    }


def test_sync_that_was_cut_short_leaves_no_double(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    job(results, "a", {s: s / 10 for s in range(1, 6)})
    original = MlflowClient.set_tag

    def cut(self: Any, run_id: str, key: str, value: Any, **more: Any) -> None:
        if key == "tokencredit.taken":
            raise OSError("power cut")
        original(self, run_id, key, value, **more)

    monkeypatch.setattr(MlflowClient, "set_tag", cut)
    assert sync(results).errors
    monkeypatch.undo()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert not sync(results).errors
    assert [m.step for m in stored(results)["train a"].history] == [1, 2, 3, 4, 5]


def test_locked_store_is_a_warning_for_the_rule_and_a_failure_by_hand(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tokencredit.tracking.store.TIMEOUT", 0.1)
    job(results, "a", {1: 0.1})
    holder = sqlite3.connect(results / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    receipt = results / "tracking.json"
    assert main(["track", "sync", "--results", str(results), "--receipt", str(receipt)]) == 0
    assert "locked" in receipt.read_text()
    assert "warning" in capsys.readouterr().err
    assert main(["track", "sync", "--results", str(results)]) == 2
    holder.execute("ROLLBACK")
    assert main(["track", "sync", "--results", str(results)]) == 0
    assert "train a" in stored(results)


def test_server_that_is_down_is_found_out_at_once(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(results, "a", {1: 0.1})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{port}")
    with pytest.raises(StoreError, match="not reachable") as caught:
        sync(results)
    assert "secret" not in str(caught.value)
    assert main(["track", "sync", "--results", str(results), "--receipt", str(results / "tracking.json")]) == 0
    assert "secret" not in (results / "tracking.json").read_text()


def test_live_tracking_of_a_dead_server_lets_the_job_go_on(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    job(results, "a", {1: 0.1})
    with Live(results, results / "events" / "train.a.jsonl", every=0.01) as live:
        pass
    assert live._thread is not None
    assert not live._thread.is_alive()
    assert "given up" in capsys.readouterr().err


def test_live_tracking_is_off_without_a_server(results: Path) -> None:
    with Live(results, results / "events" / "train.a.jsonl") as live:
        assert live._thread is None


def test_folder_without_logs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["track", "sync", "--results", str(tmp_path)]) == 2
    assert "no event logs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "text"),
    [("https://u:p@host:1/x", "https://host:1/x"), ("sqlite:////a/b.db", "sqlite:////a/b.db")],
)
def test_a_password_is_never_shown(uri: str, text: str) -> None:
    assert shown(uri) == text

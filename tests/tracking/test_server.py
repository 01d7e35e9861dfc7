"""Live tracking against a real MLflow server on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tokencredit.tracking.events import EventLog
from tokencredit.tracking.live import Live
from tokencredit.tracking.store import client
from tokencredit.tracking.sync import sync

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that runs for these tests."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            with suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=2):
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.5)
        else:
            pytest.fail(f"no server after two minutes: {(folder / 'log').read_text()[-2000:]}")
        yield uri
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(30)


def test_a_running_job_is_seen_and_the_last_sync_adds_no_double(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    results = tmp_path / "s"
    path = results / "events" / "train.a.jsonl"
    mlflow = client(server)
    table = tmp_path / "table.csv"
    table.write_text("a\n1\n")

    def history() -> list[tuple[int, float]]:
        experiment = mlflow.get_experiment_by_name("tokencredit/s")
        runs = mlflow.search_runs([experiment.experiment_id], "tags.cell = 'a'") if experiment else []
        assert len(runs) <= 1
        return sorted((m.step, m.value) for r in runs for m in mlflow.get_metric_history(r.info.run_id, "loss"))

    tags = {"study": "s", "stage": "train", "cell": "a", "spec_hash": "h"}
    with Live(results, path, every=0.2), EventLog(path, tags) as log:
        log.metrics({"loss": 3.0}, 1)
        for _ in range(150):
            if history():
                break
            time.sleep(0.2)
        assert history() == [(1, 3.0)], "not seen while the job runs"
        log.metrics({"loss": 2.0}, 2)
        log.artifact(table)
    assert history() == [(1, 3.0), (2, 2.0)]
    receipt = sync(results)
    assert receipt.errors == []
    assert history() == [(1, 3.0), (2, 2.0)]
    experiment = mlflow.get_experiment_by_name("tokencredit/s").experiment_id
    by_name = {r.info.run_name: r for r in mlflow.search_runs([experiment])}
    assert {n: r.info.status for n, r in by_name.items()} == {"s": "FINISHED", "train a": "FINISHED"}
    assert {a.path for a in mlflow.list_artifacts(by_name["train a"].info.run_id)} == {"files.json", "table.csv"}

"""Many jobs at once, and a server that is down, silent, killed midway or late: nothing is lost, doubled or waited for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tokencredit.tracking import live
from tokencredit.tracking.events import EventLog
from tokencredit.tracking.live import Live
from tokencredit.tracking.store import client, store_uri
from tokencredit.tracking.sync import sync

pytestmark = pytest.mark.slow
WRITERS, STEPS = 8, 200
WRITE = """
import sys
from tokencredit.tracking import EventLog
cell = sys.argv[2]
with EventLog(f"{sys.argv[1]}/events/train.{cell}.jsonl", {"study": "s", "stage": "train", "cell": cell, "spec_hash": "h"}) as log:
    for step in range(1, int(sys.argv[3]) + 1):
        log.metrics({"loss": 1 / step, "reward": step}, step)
"""


def stored(uri: str) -> Counter[tuple[str, str, int]]:
    """(cell, metric, step) -> how often it stands in the store."""
    mlflow = client(uri)
    experiment = mlflow.get_experiment_by_name("tokencredit/s").experiment_id
    out: Counter[tuple[str, str, int]] = Counter()
    for run in mlflow.search_runs([experiment], "tags.stage = 'train'"):
        for name in ("loss", "reward"):
            for metric in mlflow.get_metric_history(run.info.run_id, name):
                out[run.data.tags["cell"], name, metric.step] += 1
    return out


def every(cells: list[str], steps: int) -> dict[tuple[str, str, int], int]:
    return {(cell, name, step): 1 for cell in cells for name in ("loss", "reward") for step in range(1, steps + 1)}


def test_eight_jobs_at_once_lose_nothing_while_syncs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cells = [f"c{number}" for number in range(WRITERS)]
    jobs = [subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path), cell, str(STEPS)]) for cell in cells]
    while any(job.poll() is None for job in jobs):
        if list(tmp_path.glob("events/*.jsonl")):
            assert sync(tmp_path).errors == []
        time.sleep(0.05)
    assert [job.returncode for job in jobs] == [0] * WRITERS
    assert sync(tmp_path).errors == []
    assert stored(store_uri(tmp_path)) == every(cells, STEPS)


@contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """An MLflow server over the store in `folder`, whole process group ended afterwards."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "log", "a") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in range(480):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                break
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.5)
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def log_of(results: Path, cell: str) -> EventLog:
    tags = {"study": "s", "stage": "train", "cell": cell, "spec_hash": "h"}
    return EventLog(results / "events" / f"train.{cell}.jsonl", tags)


def test_a_server_that_comes_late_and_is_killed_midway_holds_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri, results, folder = f"http://127.0.0.1:{port}", tmp_path / "s", tmp_path / "server"
    folder.mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(live, "LAST", 2.0)

    with Live(results, results / "events" / "train.early.jsonl", every=0.1), log_of(results, "early") as log:
        for step in range(1, 11):  # nobody listens yet
            log.metrics({"loss": 1 / step, "reward": step}, step)

    with serving(folder, port) as server:
        assert sync(results).created == 1
        begun = time.monotonic()
        with Live(results, results / "events" / "train.late.jsonl", every=0.1), log_of(results, "late") as log:
            for step in range(1, 11):
                if step == 6:
                    kill(server)
                    begun = time.monotonic()
                log.metrics({"loss": 1 / step, "reward": step}, step)
                time.sleep(0.3)
        assert time.monotonic() - begun < 5 * 0.3 + 2.0 + 5, "a dead server holds up no job"

    with serving(folder, port):
        assert sync(results).errors == []
        assert sync(results).errors == []
        assert stored(uri) == every(["early", "late"], 10)


def test_a_silent_server_does_not_slow_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LAST", 1.0)
    results = tmp_path / "s"
    with socket.socket() as mute:  # takes connections and never answers
        mute.bind(("127.0.0.1", 0))
        mute.listen(16)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{mute.getsockname()[1]}")
        import mlflow  # noqa: F401  (its import would be timed otherwise)

        begun = time.monotonic()
        with Live(results, results / "events" / "train.a.jsonl", every=0.05), log_of(results, "a") as log:
            for step in range(100):
                log.metrics({"loss": 1.0}, step)
        assert time.monotonic() - begun < 1.0 + 5
        assert log.lost == 0

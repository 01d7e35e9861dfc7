"""Event logs -> an MLflow store, idempotent and incremental.

A run is found again by its key (study, stage, cell, spec hash). It carries how many bytes of its log were taken
and their digest: an unchanged log costs nothing, a longer one sends its new events only. MLflow keeps every value
ever logged for a (metric, step); so where a value that was sent has changed since (another base model under the
same spec), the run is made anew. Times come from the log, so a batch sent twice is stored once.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.study.errors import UserError
from tokencredit.tracking.events import Run, equal, read_run
from tokencredit.tracking.store import StoreError, client, probe, shown, store_uri

KEY, TAKEN, CURRENT = "tokencredit.key", "tokencredit.taken", "tokencredit.current"
PARENT = "mlflow.parentRunId"
KIND = {"mlflow.experimentKind": "custom_model_development"}  # which page MLflow opens with
LIMITS = {"metrics": 1000, "params": 100, "tags": 100}  # MLflow's, per batch
PARAM_LENGTH = 500
STUDY = "study"  # stage of the parent run


@dataclass
class Receipt:
    """What a sync did: numbers of runs, and why some were not taken."""

    store: str
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    remade: int = 0
    metrics: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return self.created + self.updated + self.unchanged + self.remade

    def as_json(self) -> dict[str, Any]:
        return {"stage": "track", "runs": self.runs, **asdict(self)}


def sync(results: Path | str, uri: str | None = None) -> Receipt:
    """Bring every event log under `results`/events into the store. Raises UserError where there is none, and
    StoreError where the store cannot be had; a single run that fails is named in the receipt."""
    results = Path(results)
    logs = sorted((results / "events").glob("*.jsonl"))
    if not logs:
        raise UserError(f"{results}/events: no event logs; run the study first, or name its folder (--results)")
    return Syncer(results, uri or store_uri(results)).take(logs)


class Syncer:
    """One connection to a store, for one study's results."""

    def __init__(self, results: Path | str, uri: str):
        self.results, self.uri = Path(results), uri
        self._client: Any = None
        self._experiment = ""
        self._known: dict[str, Any] = {}

    def take(self, logs: Iterable[Path], whole: bool = True) -> Receipt:
        """Sync these logs; StoreError where the store cannot be had at all.

        whole: they are all the study has, so that the study's own run can be given its status."""
        receipt = Receipt(shown(self.uri))
        runs = [run for run in map(read_run, logs) if run.tags.get("study")]
        if not runs:
            return receipt
        probe(self.uri)
        self._connect(runs[0].tags["study"])
        parent = self._parent(runs)
        for run in runs:
            try:
                self._take(run, parent, receipt)
            except Exception as error:  # the boundary: tracking never stops a study
                receipt.errors.append(f"{run.path.name}: {_line(error)}")
        if whole:
            with suppress(Exception):
                self._finish_parent(parent, runs)
        if receipt.errors and receipt.runs == 0:
            raise StoreError(f"{shown(self.uri)}: nothing could be written ({receipt.errors[0]})")
        return receipt

    def _connect(self, study: str) -> None:
        try:
            self._client = self._client or client(self.uri)
            name = f"tokencredit/{study}"
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                local = None
                if self.uri.startswith("sqlite:"):
                    local = (self.results.resolve() / "mlartifacts").as_uri()
                with suppress(Exception):  # another job may have made it meanwhile
                    self._client.create_experiment(name, artifact_location=local, tags=KIND)
                experiment = self._client.get_experiment_by_name(name)
            self._experiment = experiment.experiment_id
            self._known = {}
            token = None
            while True:
                page = self._client.search_runs([self._experiment], max_results=1000, page_token=token)
                for found in page:
                    self._remember(found)
                token = page.token
                if not token:
                    break
        except Exception as error:
            raise StoreError(f"{shown(self.uri)}: {_line(error)}") from error

    def _remember(self, found: Any) -> None:
        key = found.data.tags.get(KEY)
        old = self._known.get(key)
        if key and (old is None or _age(found) < _age(old)):
            self._known[key] = found

    def _parent(self, runs: list[Run]) -> str:
        study = runs[0].tags["study"]
        first = min(run.start for run in runs)
        commit = next((r.tags["commit"] for r in runs if r.tags.get("commit")), "")
        tags = {"study": study, "stage": STUDY, "commit": commit}
        return self._run(f"{study}/{STUDY}", study, first, tags).info.run_id

    def _finish_parent(self, parent: str, runs: list[Run]) -> None:
        config = self.results / "cells" / "report.json"
        if config.exists():  # not as params: a study that gains a seed stays the same run
            self._client.log_artifact(parent, str(config))
        states = {run.status for run in runs}
        status = next((s for s in ("RUNNING", "FAILED", "KILLED", "SCHEDULED") if s in states), "FINISHED")
        if status == "RUNNING":
            self._client.update_run(parent, status=status)
        else:
            self._client.set_terminated(parent, status=status, end_time=max(run.end for run in runs))

    def _run(self, key: str, name: str, start: int, tags: dict[str, str]) -> Any:
        """The run of `key`, made if need be. Of two jobs that make it at once, the older run stays."""
        if key in self._known:
            return self._known[key]
        made = self._client.create_run(
            self._experiment, start_time=start, run_name=name, tags={**tags, KEY: key, CURRENT: "true"}
        )
        quoted = key.replace("'", "")
        for found in self._client.search_runs([self._experiment], f"tags.`{KEY}` = '{quoted}'"):
            self._remember(found)
        kept = self._known.setdefault(key, made)
        if kept.info.run_id != made.info.run_id:
            self._client.delete_run(made.info.run_id)
        return kept

    def _take(self, run: Run, parent: str, receipt: Receipt) -> None:
        data, sent = run.data, Run(run.path)
        old = self._known.get(run.key)
        if old is None:
            receipt.created += 1
        else:
            length, _, digest = old.data.tags.get(TAKEN, "0:").partition(":")
            same = _digest(data[: int(length)]) == digest or length == "0"
            if same and int(length) == len(data) and old.info.status == run.status:
                receipt.unchanged += 1
                return
            if same:
                sent = read_run(run.path, int(length))
            if same and all(equal(run.metrics[k][0], v) for k, (v, _) in sent.metrics.items()):
                receipt.updated += 1
            else:
                self._client.delete_run(old.info.run_id)
                del self._known[run.key]
                sent = Run(run.path)
                receipt.remade += 1
        name = f"{run.tags.get('stage', '')} {run.tags.get('cell', '')}".strip()
        found = self._run(run.key, name, run.start, {**run.tags, PARENT: parent})
        receipt.metrics += self._fill(found.info.run_id, run, sent)
        self._client.set_tag(found.info.run_id, TAKEN, f"{len(data)}:{_digest(data)}")
        self._retire(run)

    def _fill(self, run_id: str, run: Run, sent: Run) -> int:
        from mlflow.entities import Metric

        new = [
            Metric(_name(k), v, at, step) for (k, step), (v, at) in run.metrics.items() if (k, step) not in sent.metrics
        ]
        self._send(
            run_id,
            metrics=new,
            params={k: v for k, v in run.params.items() if k not in sent.params},
            tags={"tokencredit.sessions": str(run.sessions), "tokencredit.log": str(run.path)},
        )
        fresh = {n: a for n, a in run.artifacts.items() if sent.artifacts.get(n, {}).get("sha256") != a["sha256"]}
        for name, event in fresh.items():
            path = Path(event["path"])
            if event["copy"] and path.exists():
                folder = str(Path(name).parent)
                self._client.log_artifact(run_id, str(path), None if folder == "." else folder)
        if fresh:
            links = [{k: a[k] for k in ("name", "path", "bytes", "sha256")} for a in run.artifacts.values()]
            self._client.log_dict(run_id, {"files": links}, "files.json")
        if run.status == "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        else:
            self._client.set_terminated(run_id, status=run.status, end_time=run.end or int(time.time() * 1000))
        return len(new)

    def _send(
        self,
        run_id: str,
        metrics: list[Any] | None = None,
        params: dict[str, str] | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Param, RunTag

        every: dict[str, list[Any]] = {
            "metrics": metrics or [],
            "params": [Param(_name(k), _short(v)) for k, v in (params or {}).items()],
            "tags": [RunTag(k, v) for k, v in (tags or {}).items()],
        }
        for kind, items in every.items():
            for part in _chunks(items, LIMITS[kind]):
                self._client.log_batch(run_id, **{kind: part})

    def _retire(self, run: Run) -> None:
        """Runs of the same stage and cell under another spec are no longer what the results hold."""
        start, end = run.key.rsplit("/", 1)[0] + "/", run.key
        for key, found in self._known.items():
            if key != end and key.startswith(start) and found.data.tags.get(CURRENT) != "false":
                self._client.set_tag(found.info.run_id, CURRENT, "false")


def _age(found: Any) -> tuple[int, str]:
    return found.info.start_time, found.info.run_id


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _name(text: str) -> str:
    """A metric's or param's name in the characters MLflow takes: avg@16 becomes avg_16."""
    return re.sub(r"[^\w\-. :/]", "_", text)


def _short(text: str) -> str:
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for i in range(0, len(items), size):
        yield items[i : i + size]


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200] if text else ''}"

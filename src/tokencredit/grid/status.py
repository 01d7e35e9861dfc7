"""What of a study's grid is done, from files alone: the study's settings against the records of the results.

done     the record is there, made by these settings from these inputs
running  a process holds the job's lease
saved    a job left with "saved, go on", or was killed on the way, and can be gone on with
failed   the last job left with an error
stale    the record is there, but was made by other settings or from other inputs: it runs again
missing  nothing is there yet
Code that has changed since makes nothing stale; it is counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.grid.presence import holder, place
from tokencredit.study import Study, analyses, cells, evaluations, layout, specs
from tokencredit.study.grid import Cell, Layout, length_metrics, needs_semifactuals
from tokencredit.study.provenance import code_hash, file_digest

STATES = ("done", "running", "saved", "failed", "stale", "missing")
TAIL = 4096  # bytes of an event log that hold its last event
Json = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One thing the study wants made."""

    stage: str
    cell: str  # as the rules name it
    record: str
    spec: Json
    inputs: tuple[str, ...] = ()
    row: str = ""  # where it stands in the grid: model.method,
    column: str = ""  # and seed
    dated: bool = False  # its file holds no record: it is done where it is younger than every input

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.cell or 'all'}"


@dataclass(frozen=True)
class Found:
    job: Job
    state: str
    reason: str = ""
    other_code: bool = False


@dataclass
class Status:
    """Every job of a study and its state."""

    study: str
    root: str
    found: list[Found] = field(default_factory=list)

    def counts(self) -> dict[str, Counter[str]]:
        """Stage -> state -> number of jobs, in the order of the work."""
        out: dict[str, Counter[str]] = {}
        for one in self.found:
            out.setdefault(one.job.stage, Counter())[one.state] += 1
        return out


def look(study: Study, folder: Path = Path()) -> Status:
    """The state of every job. Paths of the results are relative to `folder`."""
    shelf = layout(study)
    digests = Digests(folder)
    status = Status(study.study, shelf.root)
    for job in jobs(study, shelf):
        found = _state(job, folder, shelf.root, digests)
        again = [one.job.name for one in status.found if one.state != "done" and one.job.record in job.inputs]
        if job.dated and found.state == "done" and again:
            found = Found(job, "stale", f"{again[0]} is not done")
        status.found.append(found)
    return status


def jobs(study: Study, shelf: Layout) -> Iterator[Job]:
    """Every job of the study, the summaries and the report last."""
    spec = specs(study)

    def beside(table: str) -> str:
        return table.removesuffix(".parquet") + ".json"

    yield Job("problems", "train", beside(shelf.problems), spec["problems.train"])
    for name in study.grid.benchmarks:
        yield Job("problems", name, beside(shelf.benchmark(name)), spec[f"problems.{name}"])
    analysed = {problems for name in study.grid.analyses for problems in study.analyses[name].perturbed_sets}
    if "train" in analysed or any(needs_semifactuals(study, method) for method in study.grid.methods):
        yield Job("semifactuals", "", beside(shelf.semifactuals), spec["semifactuals"], (shelf.problems,))
    for name in sorted(analysed - {"train"}):
        record = beside(shelf.perturbed(name))
        yield Job("semifactuals", name, record, spec["semifactuals"], (shelf.benchmark(name),))
    for model in study.grid.models:
        yield Job("base", model, shelf.base(model), spec[f"base.{model}"])
    for cell in cells(study):
        inputs = [shelf.base(cell.model), shelf.problems]
        inputs += [shelf.semifactuals] if needs_semifactuals(study, cell.method) else []
        inputs += length_metrics(study, cell)
        record = shelf.train(cell, "train.json")
        yield Job("train", cell.id, record, spec[f"train.{cell.id}"], tuple(inputs), *_at(cell))
    for cell, step, name in evaluations(study):
        inputs = [shelf.checkpoint(cell, step), shelf.benchmark(name)]
        record = beside(shelf.samples(cell, step, name))
        label = f"{cell.id}.step{step}.{name}"
        yield Job("evaluate", label, record, spec[f"evaluate.{name}"], tuple(inputs), *_at(cell))
    for name, cell, step in analyses(study):
        look = study.analyses[name]
        inputs = [shelf.checkpoint(cell, step), *map(shelf.problem_set, look.sets)]
        inputs += map(shelf.perturbed, look.perturbed_sets)
        record = shelf.analysis(name, cell, step, "record.json")
        label = f"{cell.id}.step{step}.{name}"
        yield Job("analyse", label, record, spec[f"analysis.{name}.{cell.model}"], tuple(inputs), *_at(cell))
    yield from _summaries(study, shelf, spec)


def _summaries(study: Study, shelf: Layout, spec: dict[str, Json]) -> Iterator[Job]:
    """What is made of all cells."""
    benchmarks = [shelf.benchmark(name) for name in study.grid.benchmarks]
    candidates = shelf.candidates if study.overlap.drop else shelf.problems
    overlap = shelf.overlap.removesuffix(".parquet") + ".json"
    yield Job("overlap", "", overlap, spec["overlap"], (candidates, *benchmarks))
    samples = [shelf.samples(*e) for e in evaluations(study)]
    metrics = [shelf.train(cell, "metrics.parquet") for cell in cells(study)]
    summary, page = f"{shelf.root}/analysis/summary.csv", f"{shelf.root}/report.html"
    yield Job("aggregate", "", summary, spec["aggregate"], (*samples, *metrics), dated=True)
    looks = [shelf.analysis(name, cell, step, "record.json") for name, cell, step in analyses(study)]
    yield Job("report", "", page, spec["report"], (summary, shelf.overlap, *looks), dated=True)
    yield Job("track", "", f"{shelf.root}/tracking.json", {}, (page,), dated=True)


class Digests:
    """SHA-256 of input files, each read once; "" where there is none."""

    def __init__(self, folder: Path):
        self._folder, self._known = folder, dict[str, str]()

    def __getitem__(self, path: str) -> str:
        if path not in self._known:
            full = self._folder / path
            self._known[path] = file_digest(full) if full.is_file() else ""
        return self._known[path]


def _at(cell: Cell) -> tuple[str, str]:
    return f"{cell.model}.{cell.method}", str(cell.seed)


def _state(job: Job, folder: Path, root: str, digests: Digests) -> Found:
    held = holder(place(folder / root, job.name) / "lease.json")
    if held:
        by = f"job {held['job']}" if held.get("job") else f"process {held.get('pid')}"
        return Found(job, "running", f"{by} on {held.get('host')} since {held.get('since')}")
    if job.dated:
        return _dated(job, folder, root)
    try:
        record = json.loads((folder / job.record).read_bytes())
    except OSError:
        return _absent(job, folder / root)
    except ValueError:
        return Found(job, "stale", f"{job.record} is damaged")
    made = record.get("provenance", {})
    reason = _stale(job, record.get("spec"), made.get("inputs", {}), digests)
    return Found(job, "stale" if reason else "done", reason, made.get("code") != code_hash())


def _dated(job: Job, folder: Path, root: str) -> Found:
    """The state of a job whose file tells nothing of its inputs but that it is younger."""
    path = folder / job.record
    if not path.exists():
        return _absent(job, folder / root)
    used = folder / root / "cells" / f"{job.stage}.json"
    if job.spec and used.exists() and _digest(json.loads(used.read_bytes())) != _digest(job.spec):
        return Found(job, "stale", f"settings differ: {', '.join(_differing(json.loads(used.read_bytes()), job.spec))}")
    ages = {name: (folder / name).stat().st_mtime if (folder / name).exists() else None for name in job.inputs}
    gone = [name for name, age in ages.items() if age is None]
    if gone:
        return Found(job, "stale", f"{len(gone)} of {len(ages)} inputs are not there, the first: {gone[0]}")
    newest = max(ages, key=lambda name: ages[name] or 0.0)
    late = (ages[newest] or 0.0) > path.stat().st_mtime
    return Found(job, "stale", f"older than {newest}") if late else Found(job, "done")


def _stale(job: Job, spec: Json | None, inputs: dict[str, str], digests: Digests) -> str:
    """Why a record does not hold any more; empty where it does."""
    if _digest(spec) != _digest(job.spec):
        names = list(_differing(spec, job.spec))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"settings differ: {', '.join(names[:4])}{more}"
    for path in job.inputs:
        if not digests[path]:
            return f"input is gone: {path}"
        if inputs.get(path, digests[path]) != digests[path]:
            return f"input has changed: {path}"
    return ""


def _absent(job: Job, root: Path) -> Found:
    """The state of a job without a record: what its last words were."""
    status, open_ = _last_event(root / "events" / f"{job.name}.jsonl")
    refused = place(root, job.name) / "refused"
    if refused.exists():
        return Found(job, "failed", refused.read_text(encoding="utf-8").partition("\n")[2].splitlines()[0])
    if status in ("FAILED", "FINISHED"):  # FINISHED: its outputs were deleted since
        words = _last_line(root / "logs" / f"{job.name.removesuffix('.all')}.log")
        return Found(job, "failed" if status == "FAILED" else "missing", words if status == "FAILED" else "")
    if status in ("SCHEDULED", "KILLED"):
        return Found(job, "saved", "goes on where it was left")
    return Found(job, "saved", "its process was killed") if open_ else Found(job, "missing")


def _last_event(path: Path) -> tuple[str, bool]:
    """(status of the last `close` event or "", whether the log was begun and not closed)."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, path.stat().st_size - TAIL))
            lines = handle.read().splitlines()
    except OSError:
        return "", False
    try:
        event = json.loads(lines[-1])
        return (event["status"], False) if event["event"] == "close" else ("", True)
    except (ValueError, KeyError, IndexError, TypeError):
        return "", bool(lines)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_ABSENT = object()


def _differing(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Dotted names of what differs between two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differing(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{where}.{key}" if where else key)
    elif old != new:
        yield where or "all of them"

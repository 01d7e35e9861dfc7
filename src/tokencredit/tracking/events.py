"""The event log of one stage of one cell: JSON lines, flushed to disk one by one, appended by a resumed job.

The log is the only thing a job writes for tracking, so that a store that is locked, slow or down never touches
it. A log that cannot be written (full disk, lost mount) is given up with one warning; the job goes on.

Events: `open` (tags, host, pid), `params`, `metrics` (values, step), `artifact` (path, digest), `close` (status).
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tokencredit.study.provenance import file_digest

STATUSES = ("FINISHED", "FAILED", "KILLED", "SCHEDULED")  # SCHEDULED: saved, to be gone on with
QUIET_SECONDS = 1800  # a log without an end, of another machine, and silent for so long: its job is dead
UPLOAD_BYTES = 1 << 20  # larger artifacts are linked, not copied
UPLOADED = {".csv", ".html", ".json", ".md", ".parquet", ".png", ".svg", ".tex", ".txt"}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps and lists as one level with dotted keys.

    >>> flatten({"a": {"b": 1, "c": [{"kind": "margin"}, {}]}, "d": [1, 2]})
    {'a.b': 1, 'a.c.0.kind': 'margin', 'd': [1, 2]}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
            value = {str(i): v for i, v in enumerate(value)}
        if isinstance(value, Mapping):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


class EventLog:
    """Appends events to `path` (None: to nowhere).

    tags: study, stage, cell, spec_hash and what else names the run, all text. A log left by the same spec is
    continued; one left by another spec is replaced.
    """

    def __init__(self, path: Path | str | None, tags: Mapping[str, str] | None = None):
        self.path = Path(path) if path is not None else None
        self.tags = {k: str(v) for k, v in (tags or {}).items()}
        self.lost = 0  # events that could not be written
        self._closed = False
        if self.path is not None and self.path.exists() and _first_hash(self.path) != self.tags.get("spec_hash"):
            self.path.unlink()
        self._write("open", tags=self.tags, host=socket.gethostname(), pid=os.getpid())

    def params(self, values: Mapping[str, Any]) -> None:
        """Settings; nested ones get dotted keys. The first value of a key counts."""
        self._write("params", values={k: _text(v) for k, v in flatten(values).items()})

    def metrics(self, values: Mapping[str, float | None], step: int = 0) -> None:
        """Numbers at a step; None is left out. The last value of a (name, step) counts."""
        numbers = {k: _number(v) for k, v in values.items() if v is not None}
        if numbers:
            self._write("metrics", values=numbers, step=int(step))

    def artifact(self, path: Path | str, name: str = "", link: bool = False) -> None:
        """A file the stage made. Small tables and figures are copied into the store at sync; others, and those
        with `link` (weights), are named there by path, size and SHA-256."""
        path = Path(path)
        try:
            size, digest = path.stat().st_size, file_digest(path)
        except OSError:
            self.lost += 1
            return
        copy = not link and size <= UPLOAD_BYTES and path.suffix in UPLOADED
        self._write("artifact", path=str(path), name=name or path.name, sha256=digest, bytes=size, copy=copy)

    def close(self, status: str = "FINISHED") -> None:
        """End the run with a status of STATUSES; further calls do nothing."""
        if status not in STATUSES:
            raise ValueError(f"status '{status}' is not one of {', '.join(STATUSES)}")
        if not self._closed:
            self._closed = True
            self._write("close", status=status)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close("FINISHED")
        elif isinstance(error, SystemExit) and error.code == 85:
            self.close("SCHEDULED")
        else:
            self.close("KILLED" if kind is KeyboardInterrupt else "FAILED")

    def _write(self, event: str, **values: Any) -> None:
        if self.path is None:
            return
        line = json.dumps({"event": event, "time": int(time.time() * 1000), **values}, allow_nan=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as handle:
                if handle.tell() and not _ends_with_newline(handle):
                    line = "\n" + line  # the job before was killed in the middle of a line
                handle.write(line.encode() + b"\n")
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                print(f"warning: tracking: {self.path}: {error}; the job goes on without it", file=sys.stderr)


@dataclass
class Run:
    """What an event log says, after deduplication."""

    path: Path
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)  # -> value, time (ms)
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: str = "RUNNING"
    start: int = 0  # ms
    end: int = 0  # ms
    sessions: int = 0  # 1 + resumed
    damaged: int = 0  # lines that are no event
    data: bytes = b""  # what was read

    @property
    def key(self) -> str:
        """Names the run: one per stage, cell and spec."""
        return "/".join(self.tags.get(k, "") for k in ("study", "stage", "cell", "spec_hash"))


def read_run(path: Path | str, upto: int | None = None) -> Run:
    """Read a log (its first `upto` bytes); damaged lines are counted and passed over."""
    path = Path(path)
    data = path.read_bytes()[:upto]
    run, host, pid = Run(path, data=data), "", 0
    for line in data.splitlines():
        try:
            event = json.loads(line)
            kind, at = event["event"], int(event["time"])
            run.start, run.end = run.start or at, at
            if kind == "open":
                run.tags = run.tags or event["tags"]
                host, pid, run.status = event["host"], event["pid"], "RUNNING"
                run.sessions += 1
            elif kind == "params":
                run.params = event["values"] | run.params
            elif kind == "metrics":
                for name, value in event["values"].items():
                    old = run.metrics.get((name, event["step"]))
                    if old is None or not equal(old[0], float(value)):
                        run.metrics[name, event["step"]] = (float(value), at)
            elif kind == "artifact":
                run.artifacts[event["name"]] = event
            elif kind == "close":
                run.status = event["status"]
        except (ValueError, KeyError, TypeError, AttributeError):
            run.damaged += 1
    if run.status == "RUNNING" and not _alive(host, pid, path):
        run.status = "KILLED"
    return run


def _first_hash(path: Path) -> str | None:
    try:
        with open(path, "rb") as handle:
            return json.loads(handle.readline())["tags"].get("spec_hash")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _ends_with_newline(handle: Any) -> bool:
    handle.seek(-1, os.SEEK_END)
    return handle.read(1) == b"\n"


def _alive(host: str, pid: int, path: Path) -> bool:
    if host != socket.gethostname():
        return time.time() - path.stat().st_mtime < QUIET_SECONDS
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's process
    return pid > 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(value: float) -> float | str:
    value = float(value)
    return value if math.isfinite(value) else str(value)  # JSON has no nan and no inf


def equal(a: float, b: float) -> bool:
    """Equality under which a nan equals itself."""
    return a == b or (math.isnan(a) and math.isnan(b))

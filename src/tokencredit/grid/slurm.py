"""A stage's stay in a SLURM allocation: its wall budget, a request to leave, and going on in another allocation.

Leaving is always the same: SIGTERM (preemption, scancel, or our own timer shortly before the time limit) -> the stage
saves and raises GoOn (85). Where the job is still RUNNING for SLURM, it is then put back into the queue under the same
job number (`scontrol requeue`): Snakemake sees a job that waits again, so no retry is used up. A job that was
cancelled, or that got nowhere in a whole allocation, is left to fail, and Snakemake's retries take over.
`--signal` is no help: Snakemake inside the job gets the signal too, and the job counts as failed even if it finished.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from tokencredit.study.errors import GoOn

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds granted to a SLURM command
LEAST, MOST, SHARE = 15.0, 300.0, 0.05  # seconds kept back for saving: this share of what is left, within bounds


@dataclass(frozen=True)
class Allocation:
    """What SLURM says of the job this process runs in."""

    job: str
    state: str  # RUNNING, CANCELLED, COMPLETING, ...
    ends: float | None  # seconds since the epoch; None: no limit
    own: bool  # submitted by Snakemake for this stage alone, so that it may be put back into the queue


def allocation() -> Allocation | None:
    """The allocation of this process; None outside SLURM, or where SLURM does not answer."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return None
    facts = show_job(job)
    if not facts:
        return None
    own = facts.get("Comment", "").startswith("rule_")  # as Snakemake's executor marks its jobs
    return Allocation(job, facts.get("JobState", ""), _epoch(facts.get("EndTime", "")), own)


def show_job(job: str) -> dict[str, str]:
    """`scontrol show job` as a map; empty where the job is not known. Values hold no spaces that matter here."""
    text = call("scontrol", "show", "job", "-o", job)
    return dict(word.split("=", 1) for word in (text or "").split() if "=" in word)


def call(*words: str, timeout: float = PATIENCE) -> str | None:
    """Standard output of a command; None where it fails, hangs or is not there."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def wall_minutes(configured: float | None, found: Allocation | None, now: float) -> float | None:
    """Minutes this process may work: what the settings say, and what the allocation leaves less the time to save.

    >>> wall_minutes(None, Allocation("1", "RUNNING", 3600.0, True), 0.0)
    57.0
    """
    if found is None or found.ends is None:
        return configured
    left = max(found.ends - now, 0.0)
    minutes = max(left - min(max(SHARE * left, LEAST), MOST), 1.0) / 60
    return minutes if configured is None else min(configured, minutes)


class Stay:
    """Context manager around a stage. `minutes` is its wall budget, None if there is no limit."""

    def __init__(self, configured: float | None, state: Path | None):
        self._state = state
        self._found = allocation()
        self.minutes = wall_minutes(configured, self._found, time.time())
        self._begun = time.monotonic()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Stay:
        self._before = _files(self._state)
        self._handler = None
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, _leave)
            if self.minutes is not None:
                self._timer = threading.Timer(self.minutes * 60, os.kill, (os.getpid(), signal.SIGTERM))
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        if isinstance(error, GoOn) and self._found is not None and self._found.own:
            self._requeue(self._found.job)

    def _requeue(self, job: str) -> None:
        late = self.minutes is not None and time.monotonic() - self._begun >= self.minutes * 60
        if late and _files(self._state) == self._before:
            log.warning("job %s: the allocation is too short to get anywhere; not put back into the queue", job)
        elif show_job(job).get("JobState") != "RUNNING":
            log.info("job %s: cancelled or out of time; not put back into the queue", job)
        elif call("scontrol", "requeue", job) is None:
            log.warning("job %s: SLURM does not put it back into the queue; it fails, and is retried", job)
        else:
            log.info("job %s: back in the queue; it goes on in its next allocation", job)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: a second one must not break into the leaving
    raise GoOn


def _files(folder: Path | None) -> dict[str, tuple[int, int]]:
    """What lies under a state folder: path -> time and size. The lease is no progress."""
    found = {}
    for path in folder.rglob("*") if folder is not None and folder.is_dir() else ():
        with suppress(OSError):
            if path.name != "lease.json" and path.is_file():
                stat = path.stat()
                found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found


def _epoch(text: str) -> float | None:
    """SLURM's local time as seconds since the epoch; None for Unknown and N/A."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None

r"""A pool of grading processes that keeps its size whatever it is fed.

Each worker is `python -m tokencredit.grading.worker` in a session of its own, spoken to over pipes: no fork of the
caller, no signals in the caller, so it works from any thread. The parent holds the kill timer: a job that used more
than `timeout` seconds of its worker's processor time (or, should the machine stall, WALL_FACTOR times as much wall
time) is a timeout, its worker is killed and replaced. Processor time, so that a busy machine does not turn right
answers into timeouts. A worker that dies by itself is replaced and its job tried once more on a fresh one, so that no
answer pays for its predecessor; twice is a crash.

Workers run with PYTHONHASHSEED=0 and hold no state that a verdict depends on: their number never changes a result.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

WALL_FACTOR = 8.0
START_SECONDS = 300.0  # a cold import on a slow shared disk


@dataclass(frozen=True)
class Job:
    """What a worker is asked: whether `box` answers `gold`, and what the library says to it."""

    gold: str
    box: str
    tolerance: float | None = None
    library: bool = True


@dataclass
class Reply:
    """What became of a job. `library` stays None if it was not asked for; status as in Verdict."""

    correct: bool = False
    library: bool | None = None
    status: str = "crash"
    seconds: float = 0.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    buffer: bytes = b""
    ready: bool = False
    served: int = 0
    job: int | None = None  # index of the job it works on
    first: dict[str, Any] | None = None  # its first reply
    wall: float = field(default_factory=time.monotonic)  # start of the stage it is in
    cpu: float = 0.0  # processor time at that start

    @property
    def out(self) -> Any:
        return self.process.stdout


class Pool:
    """Worker processes for symbolic answers. `counts` holds kills, crashes and restarts.

    workers: processes; timeout: seconds of processor time for our verdict, and again for the library's; recycle: jobs
    after which a worker is replaced; memory_mb: address space of a worker (0: unlimited).
    """

    def __init__(self, workers: int, timeout: float = 5.0, recycle: int = 2000, memory_mb: int = 1536):
        self.size = max(1, workers)
        self.timeout = timeout
        self.recycle = recycle
        self.memory_mb = memory_mb
        self.counts: Counter[str] = Counter()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._close = weakref.finalize(self, _end_all, self._workers, self._owner)

    @property
    def alive(self) -> int:
        """Worker processes that run now."""
        return sum(w.process.poll() is None for w in self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [w.process.pid for w in self._workers]

    def close(self) -> None:
        """End all workers. The pool starts new ones if it is used again."""
        with self._lock:
            _end_all(self._workers, self._owner)

    def run(self, jobs: Sequence[Job]) -> list[Reply]:
        """Replies in the order of the jobs, one each. Safe from several threads (they take turns)."""
        if not jobs:
            return []
        with self._lock:
            if os.getpid() != self._owner:  # after a fork the workers belong to the parent
                self._workers.clear()
                self._owner = os.getpid()
                self._close = weakref.finalize(self, _end_all, self._workers, self._owner)
            run = _Run(self, jobs)
            try:
                return run.finish()
            except BaseException:
                for worker in [w for w in self._workers if w.job is not None]:
                    self._drop(worker)
                raise

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tokencredit.grading.worker", str(self.memory_mb), str(self.timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._workers.append(_Worker(process))

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _end(worker)


class _Run:
    """One batch on its way through the pool."""

    def __init__(self, pool: Pool, jobs: Sequence[Job]):
        self.pool, self.jobs = pool, jobs
        self.replies: list[Reply | None] = [None] * len(jobs)
        self.waiting = deque(range(len(jobs)))
        self.open = len(jobs)
        self.retried: set[int] = set()
        self.failed_starts = 0
        self.bar = tqdm(
            total=len(jobs), desc="grading", mininterval=2, delay=5, file=sys.stderr, leave=False, unit="answer"
        )

    def finish(self) -> list[Reply]:
        """Work until every job has its reply."""
        pool = self.pool
        with self.bar:
            while self.open:
                busy = sum(w.job is not None for w in pool._workers)
                while len(pool._workers) < min(pool.size, busy + len(self.waiting)):
                    pool._start()
                for worker in list(pool._workers):
                    if self.waiting and worker.ready and worker.job is None:
                        self._give(worker, self.waiting.popleft())
                self._listen()
                self._check_time()
        return [reply or Reply() for reply in self.replies]

    def _give(self, worker: _Worker, index: int) -> None:
        job = self.jobs[index]
        line = json.dumps({"gold": job.gold, "box": job.box, "tolerance": job.tolerance, "library": job.library})
        worker.job, worker.first = index, None
        worker.wall, worker.cpu = time.monotonic(), cpu_seconds(worker.process.pid)
        try:
            assert worker.process.stdin is not None
            worker.process.stdin.write(line.encode("ascii") + b"\n")
        except OSError:  # it had died while idle: the job has not been tried
            worker.job = None
            self.waiting.appendleft(index)
            self._replace(worker)

    def _listen(self) -> None:
        """Wait a moment for replies (or the end of a process) and take them in."""
        with selectors.DefaultSelector() as selector:
            for worker in self.pool._workers:
                selector.register(worker.out, selectors.EVENT_READ, worker)
            for key, _ in selector.select(timeout=0.2):
                worker = key.data
                if worker not in self.pool._workers:
                    continue
                data = os.read(worker.out.fileno(), 65536)
                if not data:
                    self._died(worker)
                    continue
                worker.buffer += data
                while b"\n" in worker.buffer:
                    line, worker.buffer = worker.buffer.split(b"\n", 1)
                    self._take(worker, json.loads(line))

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = True
            self.failed_starts = 0
            return
        if worker.job is None:
            return
        if "correct" in message:
            worker.first = message
            if self.jobs[worker.job].library:
                worker.wall, worker.cpu = time.monotonic(), cpu_seconds(worker.process.pid)
                return
        self._settle(worker, message.get("library"))
        if worker.served >= self.pool.recycle:
            self.pool.counts["recycled"] += 1
            self._replace(worker)

    def _settle(self, worker: _Worker, library: bool | None, status: str = "crash") -> None:
        """Note the reply to the job a worker holds; without a first reply it is a failure with that status."""
        assert worker.job is not None
        wanted = self.jobs[worker.job].library
        first = worker.first or {"correct": False, "status": status, "seconds": time.monotonic() - worker.wall}
        self.replies[worker.job] = Reply(
            first["correct"], (bool(library) if wanted else None), first["status"], first["seconds"]
        )
        worker.job, worker.first = None, None
        worker.served += 1
        self.open -= 1
        self.bar.update()

    def _check_time(self) -> None:
        now, limit = time.monotonic(), self.pool.timeout
        for worker in list(self.pool._workers):
            if not worker.ready:
                if now - worker.wall > START_SECONDS:
                    self._died(worker)
            elif worker.job is not None and now - worker.wall > limit:
                late = now - worker.wall > WALL_FACTOR * limit
                if late or cpu_seconds(worker.process.pid) - worker.cpu > limit:
                    self.pool.counts["library_timeout" if worker.first else "timeout"] += 1
                    self._settle(worker, None, "timeout")
                    self._replace(worker)

    def _died(self, worker: _Worker) -> None:
        """A worker ended by itself: replace it, and try its job once more."""
        self.pool.counts["died"] += 1
        index = worker.job
        if index is not None:
            if worker.first or index in self.retried:
                self._settle(worker, None)
            else:
                self.retried.add(index)
                self.waiting.appendleft(index)
        elif not worker.ready:
            self.failed_starts += 1
            if self.failed_starts > 2:
                code = worker.process.wait()
                raise RuntimeError(
                    f"a grading process ends with code {code} before it is ready: try `python -c 'import math_verify'`"
                )
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        if worker in self.pool._workers:
            self.pool._drop(worker)
            self.pool._start()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; where the system does not tell, the wall clock stands in."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return time.monotonic()


def _end(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.process.kill()
    for pipe in (worker.process.stdin, worker.process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    worker.process.wait()


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            _end(worker)
    workers.clear()

r"""A grading process: one JSON job a line on standard input, two JSON replies a line on standard output.

Job: {"gold", "box", "tolerance", "library"}. Replies, in order: {"correct", "status", "seconds"} and, where the job
asks for the library, {"library"}. The first line ever written is {"ready": true}. The process ends when its standard
input does, when its parent is gone, when it needs more memory or processor time than it may (the kernel sees to that,
even inside one long multiplication), and after a job that left it in doubt. It runs as `python -m
tokencredit.grading.worker MEMORY_MB TIMEOUT`.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

CRASHED = 70  # exit code after a job whose failure may have left the process unsound


def main() -> None:
    """Serve jobs until standard input ends."""
    memory_mb, timeout = int(sys.argv[1]), float(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    # replies get a descriptor of their own; whatever a library prints goes nowhere
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)

    from tokencredit.grading import symbolic

    logging.disable(logging.CRITICAL)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    # parsing makes millions of short-lived objects: collect seldom, and leave the imported ones alone
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _write(replies, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        _allow(2 * timeout + 5)
        try:
            start = time.perf_counter()
            correct, status = symbolic.judge(job["gold"], job["box"], job["tolerance"])
            _write(replies, {"correct": correct, "status": status, "seconds": time.perf_counter() - start})
            if job["library"]:
                _write(replies, {"library": _library(symbolic, job)})
        except MemoryError:
            os._exit(CRASHED)


def _library(symbolic: Any, job: dict[str, Any]) -> bool:
    """The library's verdict; its own failures are wrong answers, as they are for its callers."""
    try:
        return bool(symbolic.library(job["gold"], job["box"]))
    except MemoryError:
        raise
    except Exception:
        return False


def _write(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _allow(seconds: float) -> None:
    """Processor time from now on, after which the kernel ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _leave_with(parent: int) -> None:
    """End the process soon after its parent died, whatever it is computing."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()

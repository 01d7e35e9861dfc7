"""One process per cell: a lease in its state folder.

On one host, and on file systems with locks across hosts, flock decides and the kernel frees it when the holder
dies, however it dies. Where locks do not reach other hosts, or there are none, a holder's heartbeat (the lease file's
time, touched every 10 s) is respected for two minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tokencredit.study.errors import UserError

BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0


class Lease:
    """Context manager; UserError naming the holder where another process has the cell."""

    def __init__(self, folder: Path):
        self.path = folder / "lease.json"
        self._stop = threading.Event()

    def __enter__(self) -> Lease:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)  # held while the lease is
        self.taken_over = ""
        try:
            self._take()
        except BaseException:
            os.close(self._file)
            raise
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # a full disk: the kernel frees the lock all the same
            self._write(released=True)
        os.close(self._file)

    def _take(self) -> None:
        locks = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(_held(self.path, self._holder())) from None
        except OSError:  # a file system without locks
            locks = False
        before = self._holder()
        if before and not before.get("released"):
            age = time.time() - self.path.stat().st_mtime
            here = before.get("host") == socket.gethostname()
            dead = here and (locks or not _runs(before.get("pid")))
            if not dead and age < STALE_SECONDS:
                raise UserError(_held(self.path, before))
            self.taken_over = f"took over the cell from {_name(before)}, which left no sign for {age:.0f} s"
        self._write(released=False)

    def _holder(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text() or "{}")
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, released: bool) -> None:
        entry = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "released": released,
        }
        data = json.dumps(entry).encode()
        os.pwrite(self._file, data, 0)  # over the old entry and then cut: no new space is needed on a full disk
        os.ftruncate(self._file, len(data))

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a disk that hangs for a while must not end the heartbeat
                os.utime(self.path)


def _runs(pid: Any) -> bool:
    """Whether a process of this host runs."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, TypeError):
        return False
    except OSError:
        return True  # another user's
    return True


def _name(holder: dict[str, Any]) -> str:
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}{job}"


def _held(path: Path, holder: dict[str, Any]) -> str:
    return (
        f"cell held by {_name(holder)} since {holder.get('since', '?')} (lease {path}); "
        "wait for it to end, or stop it, and run again"
    )

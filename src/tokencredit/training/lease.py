"""One process per cell: a lease in its state folder.

On one host, and on file systems with locks across hosts, flock decides and the kernel frees it when the holder
dies, however it dies. Where locks do not reach other hosts, a holder's heartbeat (the lease file's time, touched
every 10 s) is respected for two minutes.
"""

from __future__ import annotations

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
        self._file = open(self.path, "a+")  # held while the lease is
        self.taken_over = ""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = self._holder()
            self._file.close()
            raise UserError(_held(self.path, holder)) from None
        before = self._holder()
        elsewhere = before.get("host", socket.gethostname()) != socket.gethostname()
        age = time.time() - self.path.stat().st_mtime
        if before and not before.get("released") and elsewhere and age < STALE_SECONDS:
            self._file.close()
            raise UserError(_held(self.path, before))
        if before and not before.get("released"):
            self.taken_over = f"took over the cell from {_name(before)}, which left no sign for {age:.0f} s"
        self._write(released=False)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._write(released=True)
        self._file.close()

    def _holder(self) -> dict[str, Any]:
        try:
            return json.loads(self.path.read_text() or "{}")
        except (OSError, json.JSONDecodeError):
            return {}

    def _write(self, released: bool) -> None:
        entry = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "released": released,
        }
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(entry))
        self._file.flush()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            os.utime(self.path)


def _name(holder: dict[str, Any]) -> str:
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}{job}"


def _held(path: Path, holder: dict[str, Any]) -> str:
    return (
        f"cell held by {_name(holder)} since {holder.get('since', '?')} (lease {path}); "
        "wait for it to end, or stop it, and run again"
    )

"""Which Snakemake runs of a study are alive, so that a job whose run was killed does not touch what its successor made.

Every main process holds a lock on results/STUDY/state/runs/{run} for its life; the kernel frees it however it dies.
Its jobs carry the run's name in their environment. Starting a run removes the files of the dead ones of this host: a
job of such a run that comes out of the queue later finds its run gone, and leaves before anything is deleted.
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from pathlib import Path
from typing import Any

NAME = "TOKENCREDIT_RUN"
_held: list[int] = []  # descriptors whose locks last as long as this process


def name_run() -> str:
    """Name this main process's run, for its jobs to inherit."""
    os.environ[NAME] = f"{socket.gethostname()}.{uuid.uuid4().hex[:12]}"
    return os.environ[NAME]


def begin(root: str) -> None:
    """Register the run of this process under `root` (results/STUDY), and forget dead ones of this host."""
    folder = Path(root) / "state" / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    mine = os.environ[NAME]
    handle = os.open(folder / mine, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX)
    _held.append(handle)
    for path in folder.glob(f"{socket.gethostname()}.*"):
        if path.name != mine and _dead(path):
            path.unlink(missing_ok=True)


def superseded(root: str) -> bool:
    """Whether this job's run is dead and another one has begun since."""
    mine, folder = os.environ.get(NAME), Path(root) / "state" / "runs"
    return bool(mine) and folder.is_dir() and not (folder / str(mine)).exists()


def _dead(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:  # held, or a file system without locks
        return False
    finally:
        os.close(handle)


def unlimited(scheduling: Any) -> None:
    """Take Snakemake's default limit of 100 submissions a second away; one that the user chose stays.

    With a limit, every round of the scheduler starts a timer that starts another round when it is up: one for each
    finished job in the end. A hundred of them take half a core, and a longer time span makes Snakemake stay that long
    when all is done.
    """
    limit = getattr(scheduling, "max_jobs_per_timespan", None)
    if limit is not None and (limit.max_jobs, limit.timespan) == (100, 1):
        scheduling.max_jobs_per_timespan = None

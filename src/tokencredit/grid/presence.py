"""Which jobs are at work: every stage of a study holds a lease at results/STUDY/state/jobs/{stage}.{cell} for its life.

Two jobs never work on the same thing, and who looks at the files alone sees what runs. Beside the lease stands
`refused` where the job last left with 2. Snakemake does not look at exit codes and would retry it: within the same run
the retry says the same again and leaves before any work.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tokencredit.grid.runs import NAME as RUN
from tokencredit.grid.slurm import call
from tokencredit.study.errors import UserError
from tokencredit.training.lease import STALE_SECONDS, Lease

PATIENCE = 120.0  # seconds granted to an older job to save and leave


def place(root: Path | str, job: str) -> Path:
    """Folder of a job named {stage}.{cell}."""
    return Path(root) / "state" / "jobs" / job


@contextmanager
def at_work(root: Path, job: str) -> Iterator[None]:
    """Hold the job's lease; UserError where another process has it. A UserError inside is noted as refusal."""
    folder = place(root, job)
    note, run = folder / "refused", os.environ.get(RUN, "")
    said = note.read_text(encoding="utf-8") if note.exists() else ""
    if run and said.startswith(run + "\n"):
        raise UserError(said.removeprefix(run + "\n") + " (said before in this run; not tried again)")
    _replace_older(folder / "lease.json")
    with ExitStack() as held:
        try:
            held.enter_context(Lease(folder))
            note.unlink(missing_ok=True)
        except OSError as error:  # a full or read-only disk, before any work
            raise UserError(
                f"{error.filename or folder}: {error.strerror}. Nothing was changed; free some space there or make it "
                "writable, and run again"
            ) from error
        try:
            yield
        except UserError as error:
            with suppress(OSError):  # a full disk
                note.write_text(f"{run}\n{error}", encoding="utf-8")
            raise


def holder(lease: Path) -> dict[str, Any] | None:
    """Who holds a lease, or None: released, its process gone (this host), or without a sign for two minutes."""
    try:
        held = json.loads(lease.read_text(encoding="utf-8"))
        age = time.time() - lease.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(held, dict) or held.get("released", True):
        return None
    if held.get("host") == socket.gethostname():
        return held if _alive(held.get("pid")) else None
    return held if age < STALE_SECONDS else None


def _replace_older(lease: Path) -> None:
    """Where an older SLURM job is at work (its Snakemake was killed, and another one submitted the same), have it save
    and leave, and wait for that."""
    mine, asked = os.environ.get("SLURM_JOB_ID", ""), ""
    deadline = time.monotonic() + PATIENCE
    while mine.isdigit() and time.monotonic() < deadline:
        theirs = str((holder(lease) or {}).get("job", ""))
        if not theirs.isdigit() or int(theirs) >= int(mine):
            return
        if theirs != asked:
            call("scancel", theirs)
            asked = theirs
        time.sleep(0.5)


def _alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, TypeError):
        return False
    except OSError:
        return True  # another user's
    return True

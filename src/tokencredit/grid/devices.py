"""GPUs for a job on a machine that has several: Snakemake counts GPUs, and this names them.

A device is held by flock on a file of its own for the life of the process, so the kernel frees it however the process
dies. Where a scheduler has assigned devices (a SLURM job), or there is no choice, nothing is done. Devices are those
of CUDA_VISIBLE_DEVICES where it is set, else nvidia-smi's, by UUID: its order and CUDA's own may differ.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokencredit.study.errors import UserError

log = logging.getLogger(__name__)
VARIABLE = "CUDA_VISIBLE_DEVICES"
POLL = 0.5  # seconds between two looks for a free device
REMIND = 60.0  # seconds between two lines that say so


def visible() -> list[str]:
    """Names of the GPUs this process may use, in order; none is the empty list."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        return names[: names.index("-1")] if "-1" in names else names  # CUDA stops reading at -1
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


@contextmanager
def hold(device: str, count: int = 1, locks: Path | None = None) -> Iterator[list[str]]:
    """Hold `count` of several visible GPUs and make them all that CUDA sees; waits until so many are free.

    device: as in the settings. Yields the devices' names, none where there was nothing to choose. To be entered before
    torch is imported. locks: folder of the lock files, the user's own in the temporary folder unless said.
    Raises UserError where there are never so many.
    """
    names = [] if device == "cpu" or os.environ.get("SLURM_JOB_ID") else visible()
    if len(names) < 2:
        yield []
        return
    if count > len(names):
        raise UserError(
            f"this job needs {count} GPUs (runtime.copies, tensor_parallel), and there are {len(names)} here"
        )
    folder = locks or Path(tempfile.gettempdir()) / f"tokencredit-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = _take(names, count, folder)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ",".join(held)
    log.info("GPU %s of %d", ", ".join(held), len(names))
    try:
        yield list(held)
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
        for handle in held.values():
            os.close(handle)


def _take(names: list[str], count: int, folder: Path) -> dict[str, int]:
    """The first free devices, each with the descriptor that holds its lock: all `count` or none, so that two jobs that
    want several never wait for each other."""
    said = 0.0
    while True:
        held: dict[str, int] = {}
        for name in names:
            handle = os.open(folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', name)}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            held[name] = handle
            if len(held) == count:
                return held
        for handle in held.values():
            os.close(handle)
        if time.monotonic() - said > REMIND:
            log.info("of %d GPUs %d are free; waiting for %d", len(names), len(held), count)
            said = time.monotonic()
        time.sleep(POLL * (1 + random.random()))  # apart from others that gave back at the same moment

"""Shared fixtures. Real benchmark files are read by path and never committed."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported: on a busy machine two OpenMP threads run many times slower than one.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the real benchmark files (data/) and grading cases (cases/); skips where it is absent."""
    folder = Path(os.environ.get("TOKENCREDIT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real benchmark files at {folder} (set TOKENCREDIT_SHARED)")
    return folder

"""What a result came from: commit, code, lock, libraries, machine, inputs. Written beside every result."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = (
    "torch", "transformers", "peft", "tokenizers", "datasets", "numpy", "pyarrow", "math-verify", "sympy",
    "snakemake", "mlflow",
)  # fmt: skip


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file, hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def collect(inputs: Iterable[Path | str] = ()) -> dict[str, Any]:
    """Provenance as plain JSON: the same for every stage run from one tree on one machine."""
    return {
        **_tree(),
        "libraries": _libraries(),
        "machine": _machine(),
        "inputs": {str(p): file_digest(p) for p in inputs},
    }


@functools.cache
def _tree() -> dict[str, Any]:
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "code": code_hash(),
        "lock": file_digest(lock) if (lock := ROOT / "envs" / "cpu.lock.txt").exists() else "",
    }


@functools.cache
def code_hash() -> str:
    """16 hex digits over the package's source files: names the code even without git."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def _libraries() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@functools.cache
def _machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }

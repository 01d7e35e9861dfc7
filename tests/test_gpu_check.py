"""The GPU check runs unchanged on a CPU at small size, and leaves out what it has no time for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def check(root: Path, out: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, str(root / "benchmarks" / "gpu_check.py"), "--twin", "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_twin(root: Path, tmp_path: Path) -> None:
    found = check(root, tmp_path / "out.json")
    assert found["left_out"] == {}
    assert [(r["pass"], r["tokens"]) for r in found["passes"]] == [(p, 1088) for p in ("score", "probe", "update")] * 2
    assert all(r["equal_bits"] for r in found["determinism"])
    grpo, mcpo, scapo = found["steps"]["methods"]
    assert grpo["probe"] == mcpo["probe"] == 0 and 0.1 < scapo["probe_share"] < 0.9
    assert scapo["probe_share_with_our_sampler"] < scapo["probe_share"]


def test_no_time(root: Path, tmp_path: Path) -> None:
    found = check(root, tmp_path / "out.json", "--minutes", "0.0001")
    assert set(found["left_out"]) == {"determinism", "steps"} and "passes" in found

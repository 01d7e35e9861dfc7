"""SIGKILL for real: the command line's training job, killed at random moments, ends with the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.conftest import study
from tokencredit.study import load_study, specs

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("TOKENCREDIT_KILLS", "4"))  # 30 and more by hand
ROLLOUTS = 40
SAME = ("metrics.parquet", "rollouts.parquet", "step4/model.safetensors", f"step{2 * ROLLOUTS}/model.safetensors")


def start(root: Path, inputs: Path) -> subprocess.Popen[bytes]:
    """The job as the workflow's rule starts it. SCAPO's correction moves the weights even where no answer is right."""
    (root / "cells").mkdir(parents=True, exist_ok=True)
    spec = specs(load_study(study(rollouts=ROLLOUTS)))["train.m.scapo.seed0"]
    spec["credit_method"]["credit"][1]["steps"] = 2 * ROLLOUTS
    (root / "cells" / "train.json").write_text(json.dumps(spec))
    (root / "cells" / "runtime.json").write_text(json.dumps({"save_minutes": 0.0, "device": "cpu"}))
    words = ["train", "--spec", "cells/train.json", "--runtime", "cells/runtime.json", "--out", "out", "--state", "state",
             "--base", inputs / "base.json", "--problems", inputs / "problems.parquet",
             "--semifactuals", inputs / "semifactuals.parquet"]  # fmt: skip
    command = [sys.executable, "-m", "tokencredit.cli", *map(str, words)]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(job: subprocess.Popen[bytes]) -> str:
    """Wait for the end; returns what the job said."""
    _, said = job.communicate(timeout=300)
    assert job.returncode == 0, said.decode()[-3000:]
    return said.decode()


def digests(root: Path) -> dict[str, str]:
    return {name: hashlib.sha256((root / "out" / name).read_bytes()).hexdigest() for name in SAME}


def steps(state: Path) -> list[str]:
    return sorted(p.name for p in state.glob("step-*"))


def wait_for(condition: object, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert job.poll() is None, "the job ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_kills_change_nothing(inputs: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(whole, inputs))
    chance = random.Random(0)
    state = broken / "state"
    for kill in range(KILLS):
        before = steps(state)
        job = start(broken, inputs)
        wait_for(lambda before=before: steps(state) != before, job)
        if kill % 2:
            wait_for(lambda: any(state.glob(".tmp-*")), job)  # in the middle of writing a checkpoint
        else:
            time.sleep(chance.uniform(0, 0.2))
        os.kill(job.pid, signal.SIGKILL)
        job.communicate()
        assert job.returncode == -signal.SIGKILL
        assert not (broken / "out" / "train.json").exists()
    said = finish(start(broken, inputs))
    assert "goes on from the checkpoint of step" in said
    assert digests(broken) == digests(whole)
    assert len(set(digests(whole).values())) == len(SAME)
    record = json.loads((broken / "out" / "train.json").read_text())
    assert record["resumed"] == KILLS
    assert steps(state) == []


def test_sigterm_leaves_with_85_and_goes_on(inputs: Path, tmp_path: Path) -> None:
    job = start(tmp_path, inputs)
    wait_for(lambda: steps(tmp_path / "state"), job)
    job.terminate()
    said = job.communicate(timeout=120)[1].decode()
    assert job.returncode == 85, said[-2000:]
    assert "run again to go on" in said
    assert "goes on from the checkpoint" in finish(start(tmp_path, inputs))

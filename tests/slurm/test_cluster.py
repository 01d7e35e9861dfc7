"""A small study on a real one-node SLURM without accounting, through everything that happens to jobs there.

The head process is killed and started again; one training job is cancelled; the other one runs into its time limit.
The results must be those of an undisturbed local run, byte for byte. Trainers are stopped (SIGSTOP) where something is
to happen to them midway, so that nothing hangs on how fast they are.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm import cluster
from tests.workflow.conftest import ROOT
from tests.workflow.test_end_to_end import digests
from tokencredit.cli import main
from tokencredit.study.tables import read_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing() or "-"),
]
PATIENCE = 600.0  # seconds that any one thing may take
TABLE = "results/grid/analysis/summary.csv"  # what is asked for: it takes every cell
CANCELLED, LIMITED = "grpo", "mcpo"  # which cell meets what
STUDY: dict[str, Any] = {
    "study": "grid",
    "problems": {"size": 64},
    "benchmarks": {"easy": {"source": {"size": 16}, "samples": 4, "checkpoints": "final"}},
    "models": {"scratch": {"source": {"steps": 40}}},
    "training": {"rollouts": 24, "prompts": 4, "checkpoints": []},
    "runtime": {"save_minutes": 0.0, "device": "cpu"},
    "grid": {"models": ["scratch"], "methods": [CANCELLED, LIMITED], "seeds": [0], "benchmarks": ["easy"]},
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a running cluster's clients."""
    root = tmp_path_factory.mktemp("slurm")
    yield {**cluster.start(root), "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": ""}
    cluster.stop(root)


def profile(folder: Path) -> Path:
    """The shipped profile for this cluster: no accounting, small jobs, two minutes for a training job."""
    settings = yaml.safe_load((ROOT / "workflow/profiles/slurm/config.yaml").read_text())
    settings |= {"slurm-status-command": "squeue", "slurm-no-account": True, "latency-wait": 5}
    settings |= {"slurm-init-seconds-before-status-checks": 2, "slurm-keep-successful-logs": True}
    settings["default-resources"] = {"mem_mb": 500, "runtime": 20}
    own = {rule: {**given, "mem_mb": 1500, "runtime": 20} for rule, given in settings["set-resources"].items()}
    for given in own.values():
        given["cpus_per_task"] = 1
    own["train"] |= {"runtime": "2 * attempt", "gpu": 0}  # so that a new run's jobs find room beside the old one's
    settings["set-resources"] = own
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


class Site:
    """A folder with the study, and calls of Snakemake in it."""

    def __init__(self, path: Path, env: dict[str, str]):
        self.path, self.env = path, env
        path.mkdir()
        (path / "study.yaml").write_text(yaml.safe_dump(STUDY))
        self.results = path / "results" / "grid"
        self.calls = 0

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--nocolor"]
        self.calls += 1
        with open(self.path / f"call{self.calls}.log", "wb") as log:
            return subprocess.Popen(
                [*command, TABLE, "--configfile", "study.yaml", *words],
                cwd=self.path, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def end(self, call: subprocess.Popen[bytes]) -> str:
        """Wait for a call that must succeed; returns what it said."""
        try:
            call.wait(PATIENCE)
        finally:
            if call.poll() is None:
                os.killpg(call.pid, signal.SIGKILL)
        said = (self.path / f"call{self.calls}.log").read_text(errors="replace")
        assert call.returncode == 0, f"{said[-5000:]}\n{self.jobs()}"
        return said

    def jobs(self) -> str:
        return slurm(self.env, "squeue", "-h", "--states=all", "-o", "%i %T %k %e")

    def steps(self, method: str) -> int:
        """Step of the newest checkpoint of a cell that is being trained."""
        found = (self.results / "state" / f"train.scratch.{method}.seed0").glob("step-*")
        return max((int(path.name.removeprefix("step-")) for path in found), default=0)

    def holder(self, method: str) -> str:
        """The SLURM job that works on a cell, or worked on it last."""
        lease = self.results / "state" / "jobs" / f"train.scratch.{method}.seed0" / "lease.json"
        return str(read_json(lease)["job"]) if lease.exists() else ""

    def signal(self, method: str, number: int) -> None:
        """To the process that trains a cell."""
        lease = read_json(self.results / "state" / "jobs" / f"train.scratch.{method}.seed0" / "lease.json")
        os.kill(lease["pid"], number)

    def stop_past(self, steps: dict[str, int]) -> None:
        """Stop the trainer of each cell as soon as it has a checkpoint after the given step."""
        waiting = dict(steps)
        while waiting:
            until(
                lambda: any(self.steps(m) > step for m, step in waiting.items()),
                f"{' and '.join(waiting)} to be trained",
            )
            for method in [m for m, step in waiting.items() if self.steps(m) > step]:
                self.signal(method, signal.SIGSTOP)
                del waiting[method]

    def record(self, method: str) -> dict[str, Any]:
        return read_json(self.results / "train" / "scratch" / method / "seed0" / "train.json")


def slurm(env: dict[str, str], *words: str) -> str:
    """Call a command of SLURM; returns what it said."""
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout


def seconds_left(env: dict[str, str], job: str) -> float:
    """Until a running job's time limit."""
    ends = re.search(r"EndTime=(\S+)", slurm(env, "scontrol", "show", "job", "-o", job))
    assert ends
    return time.mktime(time.strptime(ends[1], "%Y-%m-%dT%H:%M:%S")) - time.time()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.2)


def test_the_doctor_knows_this_cluster(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, env[name])
    assert main(["doctor", "--profile", str(ROOT / "workflow/profiles/slurm")]) == 0
    out = capsys.readouterr().out
    for line in ("slurm-status-command: squeue ", "slurm-no-account: true", "<<: &device {gpu: 1}"):
        assert line in out
    assert "64000 MB, 1 GPUs; a node of partition low gives at most 4 CPUs" in out or "can be given" in out


def test_a_disturbed_study_on_the_cluster_gives_the_bytes_of_a_local_run(env: dict[str, str], tmp_path: Path) -> None:
    local, site = Site(tmp_path / "local", env), Site(tmp_path / "cluster", env)
    local.end(local.begin("--cores", "2"))
    words = ("--workflow-profile", str(profile(tmp_path / "profile")))

    head = site.begin(*words)
    site.stop_past({CANCELLED: 0, LIMITED: 0})
    first = {method: site.holder(method) for method in (CANCELLED, LIMITED)}
    os.kill(head.pid, signal.SIGKILL)
    head.wait()
    site.end(site.begin("--unlock"))

    head = site.begin(*words)
    until(lambda: all(site.holder(m) != first[m] for m in first), "the new run's jobs to take over")
    site.stop_past({method: site.steps(method) for method in first})
    limited = site.holder(LIMITED)
    slurm(env, "scancel", site.holder(CANCELLED))
    until(lambda: 0 < seconds_left(env, limited) < 14, "the end of the allocation to be near")
    site.signal(LIMITED, signal.SIGCONT)
    said = site.end(head)

    assert said.count("Trying to restart job") == 1, "only the cancelled job uses up a retry"
    assert site.record(CANCELLED)["resumed"] == 2  # after the head's death, and after scancel
    assert site.record(LIMITED)["resumed"] == 2  # after the head's death, and at its time limit
    assert site.holder(LIMITED) == limited
    assert "Restarts=1" in slurm(env, "scontrol", "show", "job", "-o", limited)
    ours, theirs = digests(site.results), digests(local.results)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert any(name.endswith(".safetensors") for name in ours)

"""The doctor's advice, by clusters made of scripts; tests/slurm asks a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grid.conftest import FakeSlurm
from tests.workflow.conftest import ROOT
from tokencredit.cli import main
from tokencredit.grid.doctor import minutes

PROFILE = """
retries: 3
default-resources: {mem_mb: 1000 * attempt, runtime: 60}
set-resources:
  train: {gpu: 1, mem_mb: 30000 * attempt, runtime: 240, cpus_per_task: 2}
"""
CONFIG = "SLURM_VERSION           = 23.11.4\nClusterName             = alpha\nMinJobAge               = {age} sec\nJobRequeue              = {requeue}"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.yaml").write_text(PROFILE)
    return tmp_path / "p"


def cluster(slurm: FakeSlurm, nodes: str, age: int = 300, requeue: int = 1) -> None:
    """A cluster of one partition without accounting, whose GPUs are asked for as gres."""
    slurm.says("scontrol", CONFIG.format(age=age, requeue=requeue))
    slurm.says("squeue")
    slurm.says("sacct", None)
    slurm.says("sacctmgr", None)
    slurm.says("sbatch", "ok", only="--gres=gpu:1")
    slurm.says("sinfo", nodes)
    (slurm.folder / "sinfo").write_text(
        f'#!/bin/sh\ncase "$*" in *%P*) echo "main*|up";; *) printf "{nodes}\\n";; esac\n'
    )


def said(profile: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["doctor", "--profile", str(profile)]) == 0
    return capsys.readouterr().out


def test_without_a_cluster_it_says_so(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert said(profile, capsys).startswith("No SLURM here (sinfo, scontrol, sbatch, squeue not found)")


def test_a_cluster_without_accounting(slurm: FakeSlurm, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(slurm, "64|256000|gpu:a100:4(S:0-1)|1-00:00:00")
    out = said(profile, capsys)
    for line in ("slurm-status-command: squeue", "slurm-no-account: true", "{gpu: 0, gres: gpu:1}"):
        assert line in out
    assert "Every request of the profile can be given." in out


def test_accounts_are_named(slurm: FakeSlurm, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(slurm, "64|256000|gpu:4|1-00:00:00")
    slurm.says("sacct", "")
    slurm.says("sacctmgr", "physics\nmaths\nphysics")
    out = said(profile, capsys)
    assert "slurm-status-command: sacct" in out
    assert "slurm_account: physics   # or maths" in out


def test_jobs_that_are_soon_forgotten_are_asked_for_sooner(
    slurm: FakeSlurm, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(slurm, "64|256000|gpu:4|1-00:00:00", age=60, requeue=0)
    out = said(profile, capsys)
    assert "slurm-init-seconds-before-status-checks: 20" in out
    assert "not put back by default" in out


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ("64|256000|gpu:4|3:00:00", "train: runtime 240 min, partition main allows 180"),
        ("64|16000|gpu:4|1-00:00:00", "train: 2 CPUs, 30000 MB, 1 GPUs; a node of partition main gives at most 64"),
        ("64|64000|gpu:4|1-00:00:00", "train (attempt 4): 2 CPUs, 120000 MB, 1 GPUs;"),
        ("64|256000|(null)|infinite", "train: 2 CPUs, 30000 MB, 1 GPUs; a node"),
        # no kind of node has both
        ("64|256000|(null)|infinite\\n8|16000|gpu:8|infinite", "at most 8 CPUs, 16000 MB, 8 GPUs"),
    ],
)
def test_a_request_that_cannot_be_given_is_told(
    nodes: str, line: str, slurm: FakeSlurm, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(slurm, nodes)
    out = said(profile, capsys)
    assert line in out
    assert "Every request" not in out


def test_a_controller_that_is_down_is_told(slurm: FakeSlurm, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("scontrol", "sinfo", "sbatch", "squeue"):
        slurm.says(name, None)
    assert "does not answer" in said(profile, capsys)


def test_the_shipped_profile_can_be_read(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(slurm, "64|512000|gpu:8|2-00:00:00")
    assert "can be given" in said(ROOT / "workflow" / "profiles" / "slurm", capsys)


@pytest.mark.parametrize(
    ("text", "number"), [("30", 30), ("1:30", 1.5), ("1:30:00", 90), ("2-01:00:00", 2940), ("90s", 1.5), ("1d", 1440)]
)
def test_times_are_read_as_slurm_and_snakemake_write_them(text: str, number: float) -> None:
    assert minutes(text) == number

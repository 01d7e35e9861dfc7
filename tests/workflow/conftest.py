"""Running Snakemake in a folder of its own, for real, dry, or with a stand-in for the stages."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokencredit.reporting import figures

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in.py"

SMALL: dict[str, Any] = {
    "study": "small",
    "methods": {"mcpo_wide": {"credit": [{"kind": "margin", "low": 0.1, "high": 0.9}]}},
    "training": {"checkpoints": [40]},
    "analyses": {"panel": {"policies": ["base"]}},
    "grid": {
        "methods": ["grpo", "mcpo", "mcpo_wide", "scapo"],
        "seeds": [0, 1],
        "benchmarks": ["easy", "noop"],
        "analyses": ["panel"],
    },
}

# `tokencredit` is looked up beside the interpreter first; the stand-in's folder takes that place.
SHELL = """
import sys
sys.executable = {python!r}
sys.argv[0] = "snakemake"
from snakemake.cli import main
main()
"""


@dataclass
class Done:
    """A finished call of Snakemake."""

    code: int
    text: str  # standard output and error

    @property
    def jobs(self) -> Counter[str]:
        """Jobs of a dry run as 'rule' or 'rule wildcards', e.g. 'train model=scratch, method=grpo, seed=0'."""
        found: Counter[str] = Counter()
        body = self.text.split("Job stats:\n", 1)[-1]
        for block in re.split(r"\n(?=(?:local)?rule \w+:\n)", body)[1:]:
            rule = block.split(":", 1)[0].removeprefix("local").removeprefix("rule ")
            wildcards = re.search(r"^    wildcards: (.*)$", block, re.MULTILINE)
            found[f"{rule} {wildcards[1]}" if wildcards else rule] += 1
        return found

    @property
    def rules(self) -> Counter[str]:
        """Number of jobs per rule."""
        out: Counter[str] = Counter()
        for job, number in self.jobs.items():
            out[job.split()[0]] += number
        return out


@dataclass
class Folder:
    """A working folder for Snakemake."""

    path: Path
    python: str = sys.executable

    def snakemake(
        self, *words: str, config: dict[str, Any] | None = None, env: dict[str, str] | None = None, timeout: float = 120
    ) -> Done:
        """Call Snakemake here; `config` becomes a --configfile."""
        command = [sys.executable, "-c", SHELL.format(python=self.python), "--snakefile", str(ROOT / "Snakefile")]
        command += ["--directory", str(self.path), "--nocolor", *words]
        if config is not None:
            study = self.path / "study.yaml"
            study.write_text(yaml.safe_dump(config))
            command += ["--configfile", str(study)]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "FIGURES": " ".join(figures.KINDS), **(env or {})},
        )
        return Done(done.returncode, done.stdout)

    def plan(self, config: dict[str, Any] | None = None, *words: str, env: dict[str, str] | None = None) -> Done:
        """A dry run that must succeed."""
        done = self.snakemake("--dry-run", *words, config=config, env=env)
        assert done.code == 0, done.text
        return done


def stand_in(folder: Path) -> str:
    """Put the stand-in for `tokencredit` into `folder`; returns the interpreter beside which it is found."""
    folder.mkdir(parents=True)
    program = folder / "tokencredit"
    program.write_text(f"#!{sys.executable} -SE\n{STAND_IN.read_text()}")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return str(folder / "python")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SMALL study, run to its end by the stand-in."""
    base = tmp_path_factory.mktemp("finished")
    folder = Folder(base / "work", stand_in(base / "bin"))
    folder.path.mkdir()
    done = folder.snakemake("--cores", "2", "--scheduler", "greedy", config=SMALL)
    assert done.code == 0, done.text
    return folder.path


@pytest.fixture
def small(finished: Path, tmp_path: Path) -> Folder:
    """A copy of the finished SMALL study, times kept."""
    shutil.copytree(finished, tmp_path / "work")
    return Folder(tmp_path / "work")


@pytest.fixture
def empty(tmp_path: Path) -> Folder:
    """A folder in which nothing has run."""
    return Folder(tmp_path)

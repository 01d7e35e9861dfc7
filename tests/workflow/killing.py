"""Training under Snakemake, killed at chosen moments, and what a user does afterwards.

Used by test_kills.py and by benchmarks/kill.py. A call of Snakemake is a process group of its own; the trainer is the
`tokencredit train` among its descendants. After a kill the same command is called again; what Snakemake then asks for
by name (--unlock, --rerun-incomplete) is done, counted, and nothing else.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml

from tokencredit.study.provenance import file_digest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0  # seconds any one thing may take


def study(methods: list[str], rollouts: int, pretraining: int = 300) -> dict[str, Any]:
    """A study in the manner of smoke.yaml: a checkpoint after every rollout, three evaluated ones."""
    return {
        "study": "kill",
        "problems": {"size": 64},
        "benchmarks": {"easy": {"source": {"size": 16}, "samples": 4, "checkpoints": "final"}},
        "models": {"scratch": {"source": {"steps": pretraining}}},
        "methods": {"scapo": {"credit": [{"kind": "semifactual", "strength": 0.01, "steps": 2 * rollouts}]}},
        "training": {"rollouts": rollouts, "prompts": 4, "checkpoints": [2 * (rollouts // 3), 4 * (rollouts // 3)]},
        "runtime": {"save_minutes": 0.0, "device": "cpu"},
        "grid": {"models": ["scratch"], "methods": methods, "seeds": [0], "benchmarks": ["easy"]},
    }


class Call:
    """One running `snakemake`; leaving the `with` block ends what is left of its group."""

    def __init__(self, command: list[str], log: Path):
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a group of its own, as a terminal gives it
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's `&` has it ignored
                env={**os.environ, "MLFLOW_TRACKING_URI": ""},
            )

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal_all(signal.SIGKILL)
        self.process.wait()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def trainers(self) -> list[psutil.Process]:
        """The training processes among Snakemake's descendants."""
        found = []
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with _gone():
                    words = [Path(word).name for word in child.cmdline()[:3]]
                    if ("tokencredit", "train") in pairwise(words):
                        found.append(child)
        except psutil.Error:
            pass
        return found

    def trainer(self) -> psutil.Process | None:
        """Wait for the trainer; None where Snakemake ended without one."""
        until(lambda: self.process.poll() is not None or self.trainers(), 0.01)
        return next(iter(self.trainers()), None)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def signal_all(self, number: int) -> None:
        """To the whole group, Snakemake included, as a terminal's Ctrl-C or a scheduler does it."""
        with _gone():
            os.killpg(self.process.pid, number)


@dataclass
class Site:
    """A folder in which one study is worked on."""

    path: Path
    calls: int = 0

    @property
    def results(self) -> Path:
        return self.path / "results" / "kill"

    def state(self, method: str) -> Path:
        return self.results / "state" / f"train.scratch.{method}.seed0"

    def out(self, method: str) -> Path:
        return self.results / "train" / "scratch" / method / "seed0"

    def steps(self, method: str) -> list[int]:
        """Steps of the complete checkpoints."""
        return sorted(int(p.name.removeprefix("step-")) for p in self.state(method).glob("step-*"))

    def call(self, *words: str) -> Call:
        self.calls += 1
        (self.path / "calls").mkdir(exist_ok=True)
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        command += ["--configfile", str(self.path / "study.yaml"), "--directory", str(self.path), "--cores", "1"]
        command += ["--nocolor", *words]
        return Call(command, self.path / "calls" / f"{self.calls:03d}.log")

    def run(self, *words: str) -> str:
        """A call that must succeed; returns what it said."""
        with self.call(*words) as call:
            code = call.wait()
        if code != 0:
            raise AssertionError(f"snakemake {' '.join(words)} left with {code}:\n{call.text[-4000:]}")
        return call.text

    def copy(self, path: Path) -> Site:
        """What is there so far, times kept, so that Snakemake makes nothing of it again."""
        shutil.copytree(self.path, path)
        return Site(path)


def target(method: str) -> str:
    return f"results/kill/train/scratch/{method}/seed0/train.json"


def samples(method: str, rollouts: int) -> str:
    return f"results/kill/eval/scratch/{method}/seed0/step{2 * rollouts}/easy.parquet"


def prepare(path: Path, settings: dict[str, Any]) -> Site:
    """Everything up to the training: problems, perturbations, the base model."""
    path.mkdir(parents=True)
    (path / "study.yaml").write_text(yaml.safe_dump(settings))
    site = Site(path)
    made = ("models/scratch/base.json", "problems/train.parquet", "problems/semifactuals.parquet",
            "problems/bench/easy.parquet")  # fmt: skip
    site.run(*(f"results/kill/{name}" for name in made))
    return site


# --- one kill ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kill:
    """Where a kill is aimed.

    start: `delay` s after the trainer appeared (imports, loading, resuming); run: `delay` s after `rounds` new
    checkpoints; write: when the temporary folder of the checkpoint after those appears; publish: when the first
    output appears; end: when the last one, the record, appears.
    """

    aim: str
    whole: bool = False  # the whole process group, Snakemake too
    rounds: int = 0
    delay: float = 0.0


def plan(chance: random.Random, number: int) -> list[Kill]:
    """`number` kills, of three one while loading, one and a half in checkpoint writes; then two at the end.

    Of three, one takes Snakemake along.
    """
    aims = [("write", "run", "write", "start", "write", "run")[i % 6] for i in range(number)]
    chance.shuffle(aims)
    spans = {"start": 7.0, "run": 0.4, "write": 0.004, "publish": 0.05, "end": 0.0}
    return [
        Kill(aim, i % 3 == 2, chance.randrange(aim == "run", 4), chance.uniform(0, spans[aim]))
        for i, aim in enumerate([*aims, "publish", "end"])
    ]


@dataclass
class Tally:
    """What happened to one method."""

    method: str
    kills: int = 0  # that found the trainer alive
    writing: int = 0  # of these, with a checkpoint half written
    whole: int = 0  # of these, with Snakemake
    starts: int = 0  # trainers started
    unlocks: int = 0  # times Snakemake asked for --unlock
    incomplete: int = 0  # times it asked for --rerun-incomplete
    resumed: list[str] = field(default_factory=list)  # steps gone on from, as far as a start came to say so
    missed: list[str] = field(default_factory=list)  # aims of kills that came too late
    lost: list[str] = field(default_factory=list)  # starts that did not go on from the newest checkpoint


class Campaign:
    """Kills one method's training again and again."""

    def __init__(self, site: Site, method: str, say: Callable[[str], None] = lambda line: None):
        self.site, self.method, self.say = site, method, say
        self.tally = Tally(method)
        self._words = [target(method)]
        self._newest = 0  # step of the newest complete checkpoint there has been

    def run(self, kills: list[Kill]) -> Tally:
        """Every kill in turn, then to the end."""
        for kill in kills:
            with self._begin() as call:
                trainer = call.trainer()
                before = self._newest
                hit = trainer is not None and self._strike(call, trainer, kill)
                call.wait()
            if trainer is not None:
                self._note_start(call, before)
            if not hit:
                self.tally.missed.append(kill.aim)
                self.say(f"{self.method}: a kill aimed at '{kill.aim}' came too late")
        with self._begin() as call:
            trainer = call.trainer()
            if call.wait() != 0:
                raise AssertionError(f"{self.method}: did not end well\n{call.text[-4000:]}")
        if trainer is not None:
            self._note_start(call, self._newest)
        return self.tally

    def _begin(self) -> Call:
        """Call Snakemake, and do what it asks for, until the trainer runs or there is nothing left to do."""
        for _ in range(4):
            call = self.site.call(*self._words)
            if call.trainer() is not None or call.wait() == 0:
                return call
            if "cannot be locked" in call.text and "--unlock" in call.text:
                self.tally.unlocks += 1
                self.site.run("--unlock")
            elif "IncompleteFilesException" in call.text and "--rerun-incomplete" in call.text:
                self.tally.incomplete += 1
                self._words = [target(self.method), "--rerun-incomplete"]
            else:
                break
        raise AssertionError(f"{self.method}: no trainer was started\n{call.text[-4000:]}")

    def _strike(self, call: Call, trainer: psutil.Process, kill: Kill) -> bool:
        """Wait for the moment and kill; whether the trainer was at work then."""
        state, out = self.site.state(self.method), self.site.out(self.method)
        passed = set(self.site.steps(self.method))
        goal = len(passed) + kill.rounds

        def half_written() -> bool:
            return any(state.glob(f".tmp-*-{trainer.pid}"))

        def wait_for(condition: Callable[[], object], pause: float = 0.001) -> None:
            def met() -> object:
                passed.update(self.site.steps(self.method))
                return condition() or not alive(trainer)

            until(met, pause)

        if kill.aim in ("run", "write"):
            wait_for(lambda: len(passed) >= goal)
        if kill.aim == "write":
            wait_for(half_written, 0.0002)
        elif kill.aim == "publish":
            wait_for(lambda: any(out.glob("step*/checkpoint.json")))
        elif kill.aim == "end":
            wait_for((out / "train.json").exists, 0.0002)
        time.sleep(kill.delay)
        if not alive(trainer):
            return False
        if kill.whole:
            call.signal_all(signal.SIGKILL)
        else:
            with _gone():
                trainer.kill()
        if call.wait() == 0:  # it was done, only its process was still there
            return False
        until(lambda: not workers(self.site.path), 0.01)  # no worker process outlives the trainer
        self._newest = max({*self.site.steps(self.method), *passed}, default=0)
        writing = half_written()
        self.tally.kills += 1
        self.tally.whole += kill.whole
        self.tally.writing += writing
        who = "Snakemake and trainer" if kill.whole else "trainer"
        half = ", a checkpoint half written" if writing else ""
        self.say(f"{self.method}: {who} killed ({kill.aim}), newest checkpoint: step {self._newest}{half}")
        return True

    def _note_start(self, call: Call, newest: int) -> None:
        """Where this call's trainer went on from; one that was killed before it said so shows nothing."""
        self.tally.starts += 1
        found = re.search(r"goes on from the checkpoint of step (\d+)", call.text)
        if "was finished, its outputs are handed out again" in call.text:
            self.tally.resumed.append("end")
        elif found or re.search(r"\d+/\d+ \[", call.text):  # the latter is its progress bar
            step = int(found[1]) if found else 0
            self.tally.resumed.append(str(step))
            if step != newest:
                self.tally.lost.append(f"went on from step {step}, the newest checkpoint was of step {newest}")


# --- the same bytes? --------------------------------------------------------------------------------------------


def differences(ours: Site, theirs: Site, method: str, parts: tuple[str, ...] = ("train", "eval")) -> list[str]:
    """Files of a method's training and evaluation that differ, or that only one side has; clocks aside."""
    a, b = (_digests(site, method, parts) for site in (ours, theirs))
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def weights(site: Site, method: str) -> str:
    """Digest of the final weights."""
    last = max(site.out(method).glob("step*"), key=lambda p: int(p.name.removeprefix("step")))
    return file_digest(last / "model.safetensors")


def _digests(site: Site, method: str, parts: tuple[str, ...]) -> dict[str, str]:
    folders = [site.results / part / "scratch" / method for part in parts]
    found = {str(p.relative_to(site.results)): p for f in folders for p in f.rglob("*") if p.is_file()}
    clocks = ("timings.parquet", "train.json", "easy.json")
    return {name: file_digest(path) for name, path in found.items() if path.name not in clocks}


# --- small things -----------------------------------------------------------------------------------------------


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def workers(folder: Path) -> list[psutil.Process]:
    """Processes of Python that work in a folder."""
    found = []
    for process in psutil.process_iter():
        with _gone():
            if process.cwd() == str(folder) and "python" in process.name() and alive(process):
                found.append(process)
    return found


def until(condition: Callable[[], object], pause: float) -> None:
    """Wait for a condition; AssertionError when it takes longer than PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited for {PATIENCE:.0f} s in vain")
        time.sleep(pause)


@contextmanager
def _gone() -> Iterator[None]:
    """A process that has ended meanwhile needs no signal."""
    with suppress(ProcessLookupError, psutil.Error):
        yield

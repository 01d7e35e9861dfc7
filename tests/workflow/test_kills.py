"""Training that is killed, interrupted and locked out under Snakemake ends with the same bytes. Minutes.

The larger campaign, 36 kills of three methods, is benchmarks/kill.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.workflow.killing import (
    Call,
    Campaign,
    Kill,
    Site,
    alive,
    differences,
    prepare,
    samples,
    study,
    target,
    until,
    weights,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]  # on a busy machine
METHODS = ["grpo", "scapo"]
ROLLOUTS = 24


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All that training needs."""
    return prepare(tmp_path_factory.mktemp("ready") / "site", study(METHODS, ROLLOUTS))


@pytest.fixture(scope="module")
def whole(ready: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The unbroken run."""
    site = ready.copy(tmp_path_factory.mktemp("whole") / "site")
    site.run(*map(target, METHODS))
    site.run(*(samples(m, ROLLOUTS) for m in METHODS))
    assert len({weights(site, m) for m in METHODS}) == len(METHODS)
    return site


def test_kills_change_nothing(ready: Site, whole: Site, tmp_path: Path) -> None:
    site = ready.copy(tmp_path / "site")
    chance = random.Random(3)
    plans = {
        "grpo": [Kill("write", True, 1), Kill("run", False, 2, chance.uniform(0, 0.3)), Kill("end", True)],
        "scapo": [Kill("run", True, 1, chance.uniform(0, 0.3)), Kill("write", False, 1), Kill("publish", False)],
    }
    for method, kills in plans.items():
        tally = Campaign(site, method, print).run(kills)
        assert tally.kills >= 2
        assert tally.writing >= 1 and tally.whole >= 1
        assert tally.unlocks == tally.whole
        assert tally.lost == []
    site.run(*(samples(m, ROLLOUTS) for m in METHODS))
    assert [name for m in METHODS for name in differences(whole, site, m)] == []


def checkpoints(site: Site, call: Call, more: int = 1) -> int:
    """Wait until the running trainer has written `more` checkpoints; the newest one's step."""
    last = max(site.steps("grpo"), default=0)
    until(lambda: max(site.steps("grpo"), default=0) >= last + 2 * more or call.process.poll() is not None, 0.01)
    assert call.process.poll() is None, call.text[-3000:]
    return max(site.steps("grpo"))


@contextmanager
def held(call: Call) -> Iterator[psutil.Process]:
    """The trainer of a call, stopped for a while, so that it does not finish meanwhile."""
    (trainer,) = call.trainers()
    trainer.suspend()
    yield trainer
    trainer.resume()


def test_interrupted_as_a_user_does(ready: Site, whole: Site, tmp_path: Path) -> None:
    """Ctrl-C, a second Snakemake beside the first, and a scheduler's SIGTERM; then to the end."""
    site = ready.copy(tmp_path / "site")
    with site.call(target("grpo")) as call:
        step = checkpoints(site, call)
        call.signal_all(signal.SIGINT)
        assert call.wait() != 0
    assert "Traceback" not in call.text
    with site.call(target("grpo")) as call:
        checkpoints(site, call)
        assert int(call.text.split("goes on from the checkpoint of step ")[1].split()[0]) >= step
        with held(call), site.call(target("grpo")) as second:
            assert second.wait() != 0
        assert "cannot be locked" in second.text
        checkpoints(site, call)  # the first one is not disturbed
        call.signal_all(signal.SIGTERM)
        assert call.wait() != 0
    assert "returned non-zero exit status 85" in call.text
    assert "run again to go on" in call.text
    text = site.run(target("grpo"))  # without --unlock
    assert "goes on from the checkpoint of step" in text
    assert differences(whole, site, "grpo", ("train",)) == []


def test_snakemake_killed_while_its_job_lives_on(ready: Site, whole: Site, tmp_path: Path) -> None:
    """The second job is refused by the cell's lease; a job that is killed is done again where --retries says so."""
    site = ready.copy(tmp_path / "site")
    with site.call(target("grpo")) as call:
        checkpoints(site, call)
        with held(call) as orphan:
            call.process.kill()
            call.wait()
            site.run("--unlock")
            with site.call(target("grpo")) as second:
                assert second.wait() != 0
            assert f"cell held by process {orphan.pid} on" in second.text
            orphan.terminate()
        until(lambda: not alive(orphan), 0.01)
    with site.call(target("grpo"), "--retries", "1") as call:
        trainer = call.trainer()
        assert trainer is not None, call.text[-3000:]
        checkpoints(site, call)
        trainer.kill()
        assert call.wait() == 0, call.text[-3000:]
    assert call.text.count("goes on from the checkpoint of step") == 2
    assert differences(whole, site, "grpo", ("train",)) == []


def test_results_that_cannot_be_written(ready: Site, tmp_path: Path) -> None:
    """One message, and nothing changed; a dry run works all the same."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a read-only mount takes root on Linux")
    site = ready.copy(tmp_path / "site")
    before = sorted(p.relative_to(site.path) for p in site.results.rglob("*"))
    mount = ["mount", "--bind", str(site.results), str(site.results)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no read-only mount can be made here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(site.results)], check=True)
        with site.call(target("grpo")) as call:
            assert call.wait() != 0
        assert "results/kill: cannot be written" in call.text
        assert "Traceback" not in call.text
        site.run("--dry-run", target("grpo"))
    finally:
        subprocess.run(["umount", str(site.results)], check=True)
    assert before == sorted(p.relative_to(site.path) for p in site.results.rglob("*"))

"""Every method through the real trainer on a tiny model: it learns something, and a broken run ends like an unbroken one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import study
from tests.training.test_resume import Events, ParityGrader
from tokencredit.study import GoOn, load_study, specs
from tokencredit.study.config import Runtime
from tokencredit.study.errors import UserError
from tokencredit.study.methods import Length
from tokencredit.study.tables import read_table, write_table
from tokencredit.training import run as training_run
from tokencredit.training.rollout import length_targets

METHODS: dict[str, dict[str, Any]] = {
    "gspo": {"objective": {"kind": "sequence_clip"}},
    "sapo": {"objective": {"kind": "soft_gate"}},
    "fipo": {"credit": [{"kind": "future_kl"}]},
    "dapo": {"overlong": {"share": 0.5}, "refill": {"draws": 3}, "objective": {"dual": None}},
    "dr_grpo": {"advantage": {"scale": "none"}, "reduction": "constant"},
    "entropy": {"credit": [{"kind": "entropy"}]},
    "cf_grpo": {"credit": [{"kind": "spans", "shortest": 1}]},
    "oracle": {"credit": [{"kind": "oracle", "samples": 3}]},
    "oracle_weight": {"credit": [{"kind": "oracle", "samples": 3, "form": "weight"}]},
    "mcpo_gspo": {"credit": [{"kind": "margin"}], "objective": {"kind": "sequence_clip"}},
    "mcpo_scapo": {"credit": [{"kind": "margin"}, {"kind": "semifactual", "steps": 4}]},
    "held": {"length": {"like": "other", "strength": 0.5}},
}
TARGETS = (2.0, 4.0, 6.0, 3.0)  # response lengths of the run that `held` follows, by rollout
SAME = ("metrics.parquet", "rollouts.parquet", "tokens.parquet", "step8/model.safetensors")


@pytest.fixture
def go(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setattr(training_run, "Grader", ParityGrader)

    def run(root: Path, name: str, runtime: dict[str, Any] | None = None) -> Path:
        config = study(rollouts_kept=4)  # every response is stored
        config["methods"] = {name: METHODS[name], "other": {}}
        config["grid"] |= {"methods": [name, "other"], "baseline": name}
        spec = specs(load_study(config))[f"train.m.{name}.seed0"]
        semifactual = inputs / "semifactuals.parquet" if name == "mcpo_scapo" else None
        values = Runtime(**({"save_minutes": 0.0, "device": "cpu"} | (runtime or {})))
        training_run.train(
            spec,
            inputs / "base.json",
            inputs / "problems.parquet",
            semifactual,
            root / "out",
            root / "state",
            values,
            Events(),
            lengths(root) if name == "held" else None,
        )
        return root / "out"

    return run


def lengths(root: Path) -> Path:
    """Metrics of a run that was so long."""
    path = root / "lengths.parquet"
    cell = {"model": "m", "method": "other", "seed": 0}
    rows = [{**cell, "step": 2 * i, "metric": "length_mean", "value": v} for i, v in enumerate(TARGETS)]
    if not path.exists():
        write_table("metrics", [*rows, {**cell, "step": 2, "metric": "loss", "value": 9.0}], path)
    return path


def digests(out: Path) -> dict[str, str]:
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in SAME}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_stopped_after_every_step_it_ends_the_same(name: str, go: Callable[..., Path], tmp_path: Path) -> None:
    """A wall budget of nothing makes the trainer save and leave after each rollout."""
    whole = go(tmp_path / "whole", name)
    leaves = 0
    while True:
        try:
            broken = go(tmp_path / "broken", name, {"wall_minutes": 1e-9})
            break
        except GoOn:
            leaves += 1
            assert leaves < 10
    assert leaves >= 3
    assert digests(whole) == digests(broken)
    rows = read_table("metrics", whole / "metrics.parquet").to_pylist()
    moved = [r["value"] for r in rows if r["metric"] == "grad_norm"]
    assert len(moved) == 8
    assert max(moved) > 0


def test_dapo_asks_for_more_prompts_and_remembers_where_it_was(go: Callable[..., Path], tmp_path: Path) -> None:
    rows = read_table("metrics", go(tmp_path, "dapo") / "metrics.parquet").to_pylist()
    lots = [r["value"] for r in rows if r["metric"] == "refill/lots"]
    assert len(lots) == 4
    assert max(lots) > 1, "some rollout was refilled"
    assert {r["metric"] for r in rows} >= {"penalty_mean", "refill/short", "refill/equal_groups_drawn"}


@pytest.mark.slow
def test_baselines_differ_from_grpo_only_where_they_should(go: Callable[..., Path], tmp_path: Path) -> None:
    """GSPO, SAPO and FIPO make GRPO's first update (equal gradients at ratio 1): the same norm, then they part."""
    norms = {}
    for name in ("gspo", "sapo", "fipo"):
        rows = read_table("metrics", go(tmp_path / name, name) / "metrics.parquet").to_pylist()
        norms[name] = [r["value"] for r in rows if r["metric"] == "grad_norm"]
    assert norms["gspo"][0] == pytest.approx(norms["fipo"][0], rel=1e-5)
    assert norms["sapo"][0] == pytest.approx(norms["fipo"][0], rel=1e-5)
    assert norms["gspo"][-1] != pytest.approx(norms["fipo"][-1], rel=1e-5)


def test_a_control_arm_is_held_to_the_lengths_of_the_run_it_follows(go: Callable[..., Path], tmp_path: Path) -> None:
    """The mean term of each rollout, from the lengths of its stored responses and that rollout's target."""
    out = go(tmp_path, "held")
    metrics = read_table("metrics", out / "metrics.parquet").to_pylist()
    responses = read_table("rollouts", out / "rollouts.parquet").to_pylist()
    for i, target in enumerate(TARGETS[:2]):
        shown = next(r["value"] for r in metrics if r["metric"] == "penalty_mean" and r["step"] == 2 * i)
        right = next(r["value"] for r in metrics if r["metric"] == "reward_mean" and r["step"] == 2 * i)
        kept = [r for r in responses if r["step"] == 2 * i]
        assert -0.5 <= shown < 0
        assert 0 <= right <= 1
        terms = [0.5 * min(1.0, abs(r["token_count"] - target) / target) for r in kept]
        assert len(kept) == 16
        assert shown == pytest.approx(-sum(terms) / 16)
    with pytest.raises(UserError, match="pass that run's metrics as --lengths"):
        length_targets(Length(like="other"), None)

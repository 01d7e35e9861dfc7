"""Settings: typed, frozen, and every mistake named with its key and the nearest right one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokencredit.study import UserError, check_files, load_study


@pytest.fixture(scope="module")
def settings(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "config.yaml").read_text())


def changed(settings: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(settings)
    at: Any = out
    *parts, last = path.split("/")
    for part in parts:
        at = at[int(part)] if isinstance(at, list) else at[part]
    at[last] = value
    return out


MISTAKES = [
    ("training/optimizer/lrr", 1.0, "training.optimizer.lrr: unknown key; did you mean 'lr'?"),
    ("trainning", {}, "trainning: unknown key; did you mean 'training'?"),
    ("benchmarks/easy/source/splt", "easy", "splt: unknown key; did you mean 'split'?"),
    ("methods/mcpo/credit/0/lwo", 0.1, "lwo: unknown key; did you mean 'low'?"),
    ("benchmarks/easy/source/split", "eas", "'eas' is not one of train, easy, hard, noop; did you mean 'easy'?"),
    ("models/scratch/source/kind", "scrach", "unknown kind 'scrach'; did you mean 'scratch'?"),
    ("methods/mcpo/credit/0/kind", "margn", "unknown kind 'margn'; did you mean 'margin'?"),
    ("grid/methods", ["grpo", "mpco"], "unknown method 'mpco'; did you mean 'mcpo'?"),
    ("grid/models", ["scrtch"], "unknown model 'scrtch'; did you mean 'scratch'?"),
    ("grid/benchmarks", ["esy"], "unknown benchmark 'esy'; did you mean 'easy'?"),
    ("methods/mcpo/length", {"like": "grpoo"}, "methods.mcpo.length.like (a method of the grid without a length term)"),
    ("averages", {"two": {"of": ["easy", "nop"]}}, "averages.two.of: unknown benchmark 'nop'; did you mean 'noop'?"),
    ("averages", {"easy": {"of": ["noop"]}}, "averages.easy: this is the name of something else"),
    ("averages", {"two": {"of": ["easy", "easy"]}}, "names a benchmark twice"),
    ("training/optimizer/lr", "1e-5", "'1e-5' is text, not a number"),
    ("training/group", "eight", "training.group: Input should be a valid integer (got 'eight')"),
    ("training/group", 1, "training.group: Input should be greater than or equal to 2 (got 1)"),
    ("training/top_p", 0.9, "top_p must be 1.0"),
    ("training/top_k", 20, "top_p must be 1.0 and top_k 0"),
    ("training/updates", 3, "updates (3) must divide prompts (16)"),
    ("training/updates", 1, "updates: 1 makes every ratio exactly 1"),
    ("training/checkpoints", [21], "checkpoints [21]: must be multiples of updates (2)"),
    ("training/checkpoints", [200], "checkpoints [200]"),
    ("training/optimizer/lr", float("nan"), "training.optimizer.lr"),
    ("methods/mcpo/credit/0/low", 0.9, "low (0.9) must be below high (0.8)"),
    ("methods/scapo/credit/0/steps", 7, "steps (7) must be a multiple of training.updates (2)"),
    ("models/scratch/adapter/dropout", 0.1, "models.scratch.adapter.dropout"),
    ("models/scratch/prompt/template", "no place", "must contain {problem} exactly once"),
    ("semifactuals/kinds", ["typo"], "unknown kind 'typo'"),
    ("grid/seeds", [0, 0], "names the same entry twice"),
    ("study", "My Study", "study: String should match pattern"),
]


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES, ids=lambda v: str(v)[:30])
def test_mistake_is_named(path: str, value: Any, message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        load_study(changed(settings, path, value))
    assert message in str(error.value)


def test_every_mistake_is_named_at_once(settings: dict[str, Any]) -> None:
    twice = changed(changed(settings, "training/goup", 8), "evaluation/top_p", 2.0)
    with pytest.raises(UserError) as error:
        load_study(twice)
    assert "training.goup" in str(error.value)
    assert "evaluation.top_p" in str(error.value)


def test_missing_files_are_all_named(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"source": {"kind": "jsonl", "path": "${SOMEWHERE}/a.jsonl"}}
    study = changed(changed(settings, "benchmarks/a", lost), "benchmarks/b", lost)
    study["grid"]["benchmarks"] = ["a", "b"]
    with pytest.raises(UserError, match="SOMEWHERE is not set"):
        check_files(load_study(study))
    monkeypatch.setenv("SOMEWHERE", "/nowhere")
    with pytest.raises(UserError) as error:
        check_files(load_study(study))
    assert str(error.value).count("/nowhere/a.jsonl: no such file") == 2


def test_settings_cannot_be_changed_afterwards(settings: dict[str, Any]) -> None:
    study = load_study(settings)
    with pytest.raises(ValueError, match="frozen"):
        study.training.group = 4  # type: ignore[misc]


def test_steps_evaluated(settings: dict[str, Any]) -> None:
    training = load_study(settings).training
    assert training.steps == 80
    assert training.evaluated_steps == (20, 40, 60, 80)


@pytest.mark.parametrize(
    ("kinds", "counterfactual", "said"),
    [
        (["paraphrse"], False, "did you mean 'paraphrase'?"),
        (["counterfactual"], False, "semifactuals.counterfactual: true"),
        (["counterfactual"], True, None),
    ],
)
def test_semifactual_credit_asks_for_kinds_that_are_made(
    settings: dict[str, Any], kinds: list[str], counterfactual: bool, said: str | None
) -> None:
    values = changed(settings, "semifactuals/counterfactual", counterfactual)
    values = changed(values, "methods/scapo/credit/0/kinds", kinds)
    if said is None:
        load_study(values)
        return
    with pytest.raises(UserError) as error:
        load_study(values)
    assert said in str(error.value)


def test_a_credit_stands_once(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="named twice"):
        load_study(changed(settings, "methods/mcpo/credit", [{"kind": "margin"}] * 2))

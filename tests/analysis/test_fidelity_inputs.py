"""What credit fidelity reads: merged checkpoints, single responses, categories, problems without planted features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.model.test_checkpoint import base, load, saved, shift  # noqa: F401 (a fixture)
from tests.training.conftest import make_policy, make_rollout  # noqa: F401 (a fixture)
from tokencredit.analysis.fidelity_inputs import alone, categories, open_policy, without_planted
from tokencredit.model.checkpoint import open_checkpoint
from tokencredit.model.policy import Policy
from tokencredit.problems import synthetic
from tokencredit.study.config import Model, Training
from tokencredit.training.probes import perturbed_logprobs


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_checkpoint_scores_as_the_policy_did(kind: str, base: Path, tmp_path: Path) -> None:  # noqa: F811
    policy = load(base, kind=kind, rank=4, alpha=8)
    shift(policy)
    record = saved(policy, base, tmp_path / "train" / "cell" / "step4")
    model = Model.model_validate({"source": {"kind": "folder", "path": "x"}})
    opened = open_policy(open_checkpoint(record), model, Training(), "cpu")
    with torch.no_grad():
        want, got = (p.score([(3, 9)], [(27, 41, 5)], "score").logprob for p in (policy, opened))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def story(tag: str = "", scenario: str = "") -> synthetic.Story:
    found = synthetic.parse("Tom has 12 apples. Tom buys 5 more. How many apples now?")
    assert found is not None
    return replace(found, tag=tag, scenario=scenario)


@pytest.mark.parametrize(
    ("tag", "scenario", "left"),
    [
        ("#draft", "", ""),
        ("", "On a sunny day", ""),
        ("#exam", "On a rainy day", ""),
        ("#list", "", None),  # neutral: shifts nothing
        ("", "", None),
        ("#page", "On a rainy day", "#page"),
        ("#draft", "At the corner shop", "At the corner shop"),
    ],
)
def test_only_planted_features_are_removed(tag: str, scenario: str, left: str | None) -> None:
    text = without_planted(synthetic.to_row(story(tag, scenario), "train"))
    if left is None:
        assert text is None
    else:
        assert text is not None and left in text
        assert not any(word in text for word in (tag, scenario) if word and word != left)
        assert synthetic.parse(text) is not None and synthetic.parse(text).answer == 17


def test_other_problems_have_no_planted_features_and_general_categories() -> None:
    problem = synthetic.to_row(story("#draft"), "train") | {"source": "aime2024"}
    assert without_planted(problem) is None
    assert categories(problem, ["However", " 12", "$"]) == ["reflection marker", "number", "math symbol"]
    assert categories(problem | {"source": "synthetic:train"}, ["Maybe", "."]) == ["style word", "punctuation"]


def test_responses_alone_are_probed_as_in_their_groups(make_policy: Callable[..., Policy]) -> None:  # noqa: F811
    policy, rollout = make_policy(), make_rollout()
    prompts = {(f"p{i}", "k"): (5, 6, 7 + i) for i in (0, 2)}
    whole = perturbed_logprobs(policy, rollout, ["k"], prompts, 10_000)[0]
    rows = [1, 3, 6, 10]
    part = alone(rollout, rows, 4)
    found = perturbed_logprobs(policy, part, ["k"], prompts, 10_000)[0]
    assert [p["problem_id"] for p in part.problems] == ["p0", "p0", "p1", "p2"]
    assert torch.equal(part.correct, rollout.correct[rows])
    for i, row in enumerate(rows):
        size = len(rollout.responses[row])
        torch.testing.assert_close(found[i, :size], whole[row, :size], equal_nan=True)

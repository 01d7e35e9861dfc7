"""What credit fidelity looks at: the checkpoint's scores, single responses, token categories, planted features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tokencredit.analysis.testbed_categories import solution_categories
from tokencredit.model.checkpoint import Checkpoint, read_weights
from tokencredit.model.policy import Policy, load_policy
from tokencredit.problems import synthetic
from tokencredit.problems.categories import Categoriser
from tokencredit.study.config import Adapter, Model, Training
from tokencredit.study.errors import UserError
from tokencredit.training.rollout import Rollout

Problem = Mapping[str, Any]


def open_policy(opened: Checkpoint, model: Model, training: Training, device: str) -> Policy:
    """The checkpoint for scoring; a LoRA adapter merged."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = load_policy(opened.folder, Adapter(), model.dtype, device, training.temperature, 0, training.score_tile)
    if opened.kind == "lora":
        lost = policy.model.load_state_dict(read_weights(opened), strict=False)
        if lost.unexpected_keys or set(lost.missing_keys) - {"lm_head.weight"}:
            raise UserError(f"{opened.weights}: its weights do not belong to the model in {opened.folder}")
    return policy


def alone(rollout: Rollout, rows: Sequence[int], group: int) -> Rollout:
    """These responses, each as a group of its own: what probes ask of a single response."""

    def pick(name: str) -> list[Any]:
        return [getattr(rollout, name)[row] for row in rows]

    return Rollout(
        problems=[rollout.problems[row // group] for row in rows],
        prompts=pick("prompts"),
        responses=pick("responses"),
        finish=pick("finish"),
        texts=pick("texts"),
        groups=torch.arange(len(rows)),
        correct=rollout.correct[list(rows)],
        sampler_logprobs=pick("sampler_logprobs"),
        row_seeds=pick("row_seeds"),
    )


def from_testbed(problem: Problem) -> bool:
    return problem["source"].startswith("synthetic:")


def categories(problem: Problem, pieces: Sequence[str]) -> list[str]:
    """The testbed's own categories for responses to its problems, else the general ones, token by token."""
    if from_testbed(problem):
        return solution_categories(pieces)
    return [_categoriser().of(piece) for piece in pieces]


@cache
def _categoriser() -> Categoriser:
    return Categoriser()


def without_planted(problem: Problem) -> str | None:
    """A testbed problem's text without the tags and scenarios that the corpus made predict care; None without any."""
    story = synthetic.parse(problem["problem"]) if from_testbed(problem) else None
    if story is None:
        return None
    tag = "" if synthetic.TAGS.get(story.tag) else story.tag
    scenario = "" if synthetic.SCENARIOS.get(story.scenario) else story.scenario
    bare = dataclasses.replace(story, tag=tag, scenario=scenario)
    return None if bare == story else bare.text

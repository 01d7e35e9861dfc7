"""One rollout: which problems, which samples, which rewards. Everything drawn by hash, nothing from global state."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokencredit.grading import Grader, Item
from tokencredit.model.prompts import Prompter
from tokencredit.sampling import Engine, Params, Request
from tokencredit.study.config import Training
from tokencredit.study.seeds import derive

Problem = Mapping[str, Any]


@dataclass(frozen=True)
class Rollout:
    """N = prompts x G responses, group after group; row i belongs to prompt `groups[i]`."""

    problems: list[Problem]  # [P]
    prompts: list[tuple[int, ...]]  # [N]
    responses: list[tuple[int, ...]]  # [N] EOS included where it was sampled
    finish: list[str]  # [N] stop | length
    texts: list[str]  # [N]
    groups: Tensor  # [N] long: 0 .. P-1
    rewards: Tensor  # [N] float64
    sampler_logprobs: list[tuple[float, ...]]  # [N]
    row_seeds: list[int]  # [N]

    @property
    def mask(self) -> Tensor:
        """[N, T] bool, from lengths: padding never looks like a token, whatever the pad id is."""
        lengths = torch.tensor([len(r) for r in self.responses])
        return torch.arange(int(lengths.max()))[None] < lengths[:, None]


class Feed:
    """The order of problems: reshuffled each epoch by (study seed, cell seed, epoch), the same for every method.

    `subset` problems are drawn first, by the order of hash(seed, cell seed, problem id): stable under re-ordering
    of the file.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, cell_seed: int, subset: int | None):
        self.seed, self.cell_seed = seed, cell_seed
        ranked = sorted(problems, key=lambda p: derive(seed, "subset", cell_seed, p["problem_id"]))
        self.problems = ranked[:subset] if subset else ranked

    def take(self, start: int, count: int) -> list[Problem]:
        """`count` problems from position `start` of the endless stream."""
        return [self._at(position) for position in range(start, start + count)]

    def _at(self, position: int) -> Problem:
        epoch, place = divmod(position, len(self.problems))
        return self.problems[self._order(epoch)[place]]

    def _order(self, epoch: int) -> list[int]:
        if getattr(self, "_epoch", None) != epoch:
            order = list(range(len(self.problems)))
            random.Random(derive(self.seed, "order", self.cell_seed, epoch)).shuffle(order)
            self._epoch, self._cached = epoch, order
        return self._cached


def draw(
    index: int,
    feed: Feed,
    engine: Engine,
    prompter: Prompter,
    training: Training,
    eos: tuple[int, ...],
) -> tuple[list[Problem], list[tuple[int, ...]], list[Any], list[int]]:
    """Sample rollout `index`: (problems [P], prompts [N], completions [N], row seeds [N])."""
    problems = feed.take(index * training.prompts, training.prompts)
    prompts, seeds = [], []
    for place, problem in enumerate(problems):
        ids = prompter.ids(problem["problem"], problem["choices"])
        for sample in range(training.group):
            prompts.append(ids)
            seeds.append(derive(feed.seed, "rollout", feed.cell_seed, index, place, sample))
    params = Params(max_tokens=training.max_tokens, temperature=training.temperature, eos=eos)
    completions = engine.generate([Request(p, s) for p, s in zip(prompts, seeds, strict=True)], params)
    return problems, prompts, completions, seeds


def grade(
    problems: list[Problem],
    prompts: list[tuple[int, ...]],
    completions: list[Any],
    seeds: list[int],
    prompter: Prompter,
    grader: Grader,
    group: int,
) -> Rollout:
    """Reward 1 for a right boxed answer, else 0; a truncated response stays in its group."""
    texts = [prompter.decode(c.tokens) for c in completions]
    items = [
        Item(p["answer"], texts[i], p["answer_kind"], truncated=completions[i].finish == "length")
        for i, p in ((i, problems[i // group]) for i in range(len(completions)))
    ]
    verdicts = grader.grade(items)
    return Rollout(
        problems=problems,
        prompts=prompts,
        responses=[tuple(c.tokens) for c in completions],
        finish=[c.finish for c in completions],
        texts=texts,
        groups=torch.arange(len(problems)).repeat_interleave(group),
        rewards=torch.tensor([float(v.correct) for v in verdicts], dtype=torch.float64),
        sampler_logprobs=[tuple(c.logprobs) for c in completions],
        row_seeds=seeds,
    )

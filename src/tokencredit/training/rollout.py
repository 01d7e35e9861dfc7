"""One rollout: which problems, which samples, which rewards. Everything drawn by hash, nothing from global state."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokencredit.grading import Grader, Item
from tokencredit.model.prompts import Prompter
from tokencredit.sampling import Engine, Params, Request
from tokencredit.study.config import Training
from tokencredit.study.errors import UserError
from tokencredit.study.methods import Length, Overlong, Refill
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_table

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
    correct: Tensor  # [N] float64: 1 for a right boxed answer of a finished response, else 0
    sampler_logprobs: list[tuple[float, ...]]  # [N]
    row_seeds: list[int]  # [N]
    penalty: Tensor | None = None  # [N] what reward shaping adds

    @property
    def rewards(self) -> Tensor:
        """[N] float64, what the method learns from."""
        return self.correct if self.penalty is None else self.correct + self.penalty

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
    start: int | None = None,
    draws: int = 0,
) -> tuple[list[Problem], list[tuple[int, ...]], list[Any], list[int]]:
    """Sample rollout `index`: (problems [P], prompts [N], completions [N], row seeds [N]).

    start: position in the feed (default: where rollout `index` begins if none is ever refilled); draws: rounds of this
    rollout that were drawn before.
    """
    problems = feed.take(index * training.prompts if start is None else start, training.prompts)
    prompts, seeds = [], []
    for place, problem in enumerate(problems, start=draws * training.prompts):
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
    """Reward 1 for a right boxed answer, else 0; a truncated response earns 0 and stays in its group."""
    texts = [prompter.decode(c.tokens) for c in completions]
    finish = [c.finish for c in completions]
    items = [
        Item(p["answer"], texts[i], p["answer_kind"], truncated=finish[i] == "length")
        for i, p in ((i, problems[i // group]) for i in range(len(completions)))
    ]
    correct = torch.tensor(
        [earned(v.correct, how) for v, how in zip(grader.grade(items), finish, strict=True)], dtype=torch.float64
    )
    return Rollout(
        problems=problems,
        prompts=prompts,
        responses=[tuple(c.tokens) for c in completions],
        finish=finish,
        texts=texts,
        groups=torch.arange(len(problems)).repeat_interleave(group),
        correct=correct,
        sampler_logprobs=[tuple(c.logprobs) for c in completions],
        row_seeds=seeds,
    )


def earned(correct: bool, finish: str) -> float:
    """Reward of a response. Evaluation counts a box that was closed before the limit; a reward for it would teach the
    policy to go on without end."""
    return float(correct and finish != "length")


def shape(rollout: Rollout, overlong: Overlong | None, limit: int) -> Rollout:
    """Add DAPO's soft overlong penalty: 0 up to (1 - share) limit tokens, -1 at the limit, linear between.

    limit: response tokens of a rollout. Groups are judged right or wrong (refill) before this.
    """
    if overlong is None:
        return rollout
    buffer = overlong.share * limit
    lengths = torch.tensor([len(r) for r in rollout.responses], dtype=torch.float64)
    penalty = ((limit - buffer - lengths) / buffer).clamp(-1, 0)
    return dataclasses.replace(rollout, penalty=penalty)


def hold(rollout: Rollout, length: Length, target: float) -> Rollout:
    """Add the length term of a control arm: -strength min(1, |tokens - target| / target)."""
    tokens = torch.tensor([len(r) for r in rollout.responses], dtype=torch.float64)
    term = -length.strength * ((tokens - target).abs() / target).clamp(max=1.0)
    return dataclasses.replace(rollout, penalty=term if rollout.penalty is None else rollout.penalty + term)


def length_targets(length: Length | None, metrics: Path | None) -> dict[int, float]:
    """Optimisation steps before a rollout -> its mean response length, from another run's metrics."""
    if length is None:
        return {}
    if metrics is None:
        raise UserError(f"this method is held to the length of '{length.like}': pass that run's metrics as --lengths")
    rows = read_table("metrics", metrics).to_pylist()
    return {r["step"]: r["value"] for r in rows if r["metric"] == "length_mean"}


def join(rollouts: Sequence[Rollout], groups: Sequence[int], size: int) -> Rollout:
    """These groups (counted over all rollouts, G = size responses each) as one rollout."""
    rows = [row for g in groups for row in range(g * size, (g + 1) * size)]

    def pick(name: str) -> list[Any]:
        every = [value for r in rollouts for value in getattr(r, name)]
        return [every[row] for row in rows]

    problems = [p for r in rollouts for p in r.problems]
    correct = torch.cat([r.correct for r in rollouts])[rows]
    return Rollout(
        problems=[problems[g] for g in groups],
        prompts=pick("prompts"),
        responses=pick("responses"),
        finish=pick("finish"),
        texts=pick("texts"),
        groups=torch.arange(len(groups)).repeat_interleave(size),
        correct=correct,
        sampler_logprobs=pick("sampler_logprobs"),
        row_seeds=pick("row_seeds"),
    )


def mixed(correct: Tensor, size: int) -> Tensor:
    """[P] bool: groups that are neither all right nor all wrong. correct [N], group after group."""
    right = correct.view(-1, size).sum(-1)
    return (right > 0) & (right < size)


def refilled(
    draw_round: Callable[[int], Rollout], refill: Refill | None, prompts: int, size: int
) -> tuple[Rollout, dict[str, float]]:
    """One rollout of `prompts` groups, and what dynamic sampling did (DAPO, arXiv 2503.14476).

    draw_round(k) samples and grades the k-th lot of `prompts` groups. With refill, only mixed groups are kept, in the
    order drawn, until there are enough; after `draws` lots the rest is filled with groups that were passed over (they
    learn nothing, as in GRPO), so that a step always has its prompts.
    """
    lots = [draw_round(0)]
    if refill is None:
        return lots[0], {}
    while sum(int(mixed(r.correct, size).sum()) for r in lots) < prompts and len(lots) < refill.draws:
        lots.append(draw_round(len(lots)))
    kept = torch.cat([mixed(r.correct, size) for r in lots])
    good, poor = (torch.nonzero(k).flatten().tolist() for k in (kept, ~kept))
    chosen = (good + poor)[:prompts]
    return join(lots, chosen, size), {
        "refill/lots": float(len(lots)),
        "refill/equal_groups_drawn": (~kept).double().mean().item(),
        "refill/short": max(0, prompts - len(good)) / prompts,
        "refill/reward_mean_drawn": torch.cat([r.correct for r in lots]).mean().item(),
    }

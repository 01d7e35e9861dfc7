"""Monte Carlo values of the prefixes of sampled responses: what each position really did (VinePPO, arXiv 2410.01679).

V_t is the success rate of continuations of prompt + first t response tokens, V_T the response's own reward, exactly;
effect_t = V_{t+1} - V_t. VinePPO draws M continuations per prefix. OURS, the same quantity with less noise: the sampled
token's probability p_t is known, so only what happens without it is sampled (O_t: success rate of M continuations whose
first token is drawn from the other tokens), and from the end back
    V_t = p_t V_{t+1} + (1 - p_t) O_t,   effect_t = (1 - p_t) (V_{t+1} - O_t).   So is its noise scaled.
OURS: where 1 - p_t is small nothing is sampled and V_t := V_{t+1} (settled), as long as the bound b of the bias stays
within the tolerance: b_T = 0; settled: b_t = p_t b_{t+1} + 1 - p_t; sampled: b_t = p_t b_{t+1}.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from tokencredit.grading import Grader, Item
from tokencredit.model.prompts import Prompter
from tokencredit.sampling import Completion, Engine, Params, Request
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive
from tokencredit.training.rollout import earned

Problem = Mapping[str, Any]
# rewards in {0, 1} of whole responses: (problems, token ids of the responses, how each ended: stop | length)
Grade = Callable[[Sequence[Problem], Sequence[Sequence[int]], Sequence[str]], Sequence[float]]
AT_ONCE = 8192  # continuations of one call of the engine


@dataclass(frozen=True)
class Values:
    """Values of N responses of up to T tokens; position t is the prefix of t tokens. 0 beyond a response's end."""

    mask: Tensor  # [N, T] bool: response tokens
    value: Tensor  # [N, T + 1] float64
    se: Tensor  # [N, T + 1] standard error of the sampling; 0 at the end
    bound: Tensor  # [N, T + 1] how far settling can bias the value
    drawn: Tensor  # [N, T] long: continuations without this token; 0 where settled
    effect: Tensor  # [N, T] V_{t+1} - V_t; 0 where settled
    effect_se: Tensor  # [N, T]; never 0 where sampled: see binomial
    effect_variance: Tensor  # [N, T] unbiased: effect^2 - effect_variance estimates the squared true effect
    effect_bound: Tensor  # [N, T] how far settling can bias the effect; 1 - p_t where settled
    effect_halves: Tensor  # [2, N, T] by the first and the second half of the samples, independent of each other
    sampled: int  # distinct (prefix, token) pairs that were sampled, over all rows


@dataclass(frozen=True)
class Fork:
    """A place to leave a response's path: any token but `token` after `ids` = prompt + the first `length` tokens."""

    problem: str
    ids: tuple[int, ...]
    length: int
    token: int


def prefix_values(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    responses: Sequence[tuple[int, ...]],
    finish: Sequence[str],
    rewards: Sequence[float],
    problems: Sequence[Problem],
    grade: Grade,
    *,
    samples: int,
    eos: tuple[int, ...],
    max_tokens: int,
    seeds: Sequence[int],
    logprobs: Sequence[Sequence[float]],
    tolerance: float,
    temperature: float = 1.0,
    label: str = "",
) -> Values:
    """Values of every prefix of N responses; all sequences have one entry per response.

    rewards: the verifiable ones, 0 or 1, of truncated responses too; logprobs: of the sampled tokens by the engine's
    policy at `temperature`; max_tokens: limit of a whole response. seeds: one per response; every continuation has
    seeds of its own, derived from its response's, place and number, so that all estimates are independent (with common
    random numbers V_{t+1} and O_t would not be). Responses to a problem that leave the same prefix by the same token
    share its continuations, drawn with the first one's seed. label: names the progress bar; none without it.
    Raises UserError where the sequences do not belong together.
    """
    _check(prompts, responses, finish, rewards, problems, seeds, logprobs, samples, max_tokens, tolerance)
    plans = [settle(row, tolerance) for row in logprobs]
    forks: list[dict[int, Fork]] = []  # of each response, by position
    owner: dict[Fork, int] = {}  # the response whose seed it has
    for row, (sampled, _) in enumerate(plans):
        name, prompt, response = problems[row]["problem_id"], prompts[row], responses[row]
        at = [t for t, wanted in enumerate(sampled) if wanted]
        forks.append({t: Fork(name, (*prompt, *response[:t]), t, response[t]) for t in at})
        for fork in forks[-1].values():
            owner.setdefault(fork, row)
    seeded = {fork: (problems[row], seeds[row]) for fork, row in owner.items()}
    sampler = Sampler(engine, grade, samples, eos, max_tokens, temperature)
    right = sampler.run(seeded, label)
    return _assemble(plans, forks, responses, rewards, logprobs, right, samples)


def settle(logprobs: Sequence[float], tolerance: float) -> tuple[list[bool], list[float]]:
    """(whether each token's alternatives are sampled [T], bound of each value's bias [T + 1]).

    >>> import math
    >>> sampled, bound = settle([math.log(p) for p in (0.5, 0.995, 0.994, 0.995)], 0.01)
    >>> sampled, [round(b, 6) for b in bound]
    ([True, False, True, False], [0.004973, 0.009945, 0.00497, 0.005, 0.0])
    """
    sampled, bound = [], [0.0]
    for logprob in reversed(logprobs):
        p = min(1.0, math.exp(logprob))
        without = p * bound[-1] + 1 - p
        sampled.append(without > tolerance)
        bound.append(p * bound[-1] if sampled[-1] else without)
    return sampled[::-1], bound[::-1]


class Sampler:
    """Draws continuations that leave a path at given forks, and grades them."""

    def __init__(
        self, engine: Engine, grade: Grade, samples: int, eos: tuple[int, ...], max_tokens: int, temperature: float
    ):
        self.engine, self.grade, self.samples, self.eos = engine, grade, samples, eos
        self.max_tokens, self.temperature = max_tokens, temperature

    def run(self, seeded: Mapping[Fork, tuple[Problem, int]], label: str) -> dict[Fork, Tensor]:
        """fork -> rewards [samples] float64. seeded: fork -> (problem, seed). Forks of like length go together."""
        ordered = sorted(seeded, key=lambda f: f.length)
        per = max(1, AT_ONCE // self.samples)
        out: dict[Fork, Tensor] = {}
        total = len(ordered) * self.samples
        with tqdm(total=total, desc=label, unit="sample", mininterval=2, disable=not label) as bar:
            for start in range(0, len(ordered), per):
                part = ordered[start : start + per]
                firsts = self._first_tokens(part, seeded)
                whole = self._responses(part, seeded, firsts)
                asked = [seeded[f][0] for f in part for _ in range(self.samples)]
                rewards = self.grade(asked, [ids for ids, _ in whole], [ended for _, ended in whole])
                table = torch.tensor(rewards, dtype=torch.float64).view(-1, self.samples)
                out |= dict(zip(part, table, strict=True))
                bar.update(len(asked))
        return out

    def _first_tokens(self, part: Sequence[Fork], seeded: Mapping[Fork, tuple[Problem, int]]) -> dict[Fork, list[int]]:
        """`samples` tokens per fork, from the policy's distribution without the fork's own token."""
        by_token: dict[int, list[Fork]] = {}
        for fork in part:
            by_token.setdefault(fork.token, []).append(fork)
        out: dict[Fork, list[int]] = {}
        for token, forks in by_token.items():
            params = Params(1, self.temperature, suppress=(token,))
            requests = [
                Request(f.ids, derive(seeded[f][1], "leave", f.length, m)) for f in forks for m in range(self.samples)
            ]
            drawn = iter(self.engine.generate(requests, params))
            for fork in forks:
                out[fork] = [next(drawn).tokens[0] for _ in range(self.samples)]
        return out

    def _responses(
        self,
        part: Sequence[Fork],
        seeded: Mapping[Fork, tuple[Problem, int]],
        firsts: Mapping[Fork, Sequence[int]],
    ) -> list[tuple[tuple[int, ...], str]]:
        """(tokens of the whole response, how it ended) per fork and sample, in order."""
        open_: dict[int, list[tuple[Fork, int, int]]] = {}
        for f in part:
            often = Counter(firsts[f])
            for m, token in enumerate(firsts[f]):
                if token not in self.eos and f.length + 1 < self.max_tokens:
                    open_.setdefault(often[token].bit_length() // 2, []).append((f, m, token))
        room = self.max_tokens - min(f.length for f in part) - 1  # each is cut to its own limit below
        params = Params(max(1, room), self.temperature, eos=self.eos)
        rest: dict[tuple[Fork, int], Completion] = {}
        for alike in open_.values():  # the engine's work grows with the most rows of one prompt: like with like
            asked = [Request((*f.ids, token), derive(seeded[f][1], "go on", f.length, m)) for f, m, token in alike]
            drawn = self.engine.generate(asked, params)
            rest |= {(f, m): c for (f, m, _), c in zip(alike, drawn, strict=True)}
        return [self._joined(f, token, rest.get((f, m))) for f in part for m, token in enumerate(firsts[f])]

    def _joined(self, fork: Fork, token: int, rest: Completion | None) -> tuple[tuple[int, ...], str]:
        ids = (*fork.ids[len(fork.ids) - fork.length :], token)
        if rest is None:
            return ids, "stop" if token in self.eos else "length"
        whole = (*ids, *rest.tokens)
        return (whole, rest.finish) if len(whole) <= self.max_tokens else (whole[: self.max_tokens], "length")


def text_grade(prompter: Prompter, grader: Grader, tolerance: float | None = None) -> Grade:
    """Grade token ids as the trainer grades responses; equal ones are read once."""

    def grade(problems: Sequence[Problem], responses: Sequence[Sequence[int]], finish: Sequence[str]) -> list[float]:
        keys = [(p["problem_id"], tuple(r), f) for p, r, f in zip(problems, responses, finish, strict=True)]
        asked = dict(zip(keys, problems, strict=True))
        items = [
            Item(problem["answer"], prompter.decode(ids), problem["answer_kind"], tolerance, ended == "length")
            for (_, ids, ended), problem in asked.items()
        ]
        verdicts = dict(zip(asked, grader.grade(items), strict=True))
        return [earned(verdicts[key].correct, key[2]) for key in keys]

    return grade


def binomial(right: Tensor) -> tuple[Tensor, Tensor]:
    """(unbiased variance, squared standard error) of a success rate; right [..., M] in {0, 1} -> [...].

    The unbiased one, k (M - k) / (M^2 (M - 1)), is 0 where all succeed or none does; the standard error takes the rate
    (k + 1) / (M + 2) there.

    >>> [round(v.item(), 6) for v in binomial(torch.tensor([0.0, 0.0, 0.0, 0.0]))]
    [0.0, 0.034722]
    """
    m, rate = right.shape[-1], right.mean(-1)
    unbiased = rate * (1 - rate) / max(1, m - 1)
    corrected = (rate * m + 1) / (m + 2)
    return unbiased, torch.where(unbiased > 0, unbiased, corrected * (1 - corrected) / m)


def _assemble(
    plans: Sequence[tuple[Sequence[bool], Sequence[float]]],
    forks: Sequence[Mapping[int, Fork]],
    responses: Sequence[Sequence[int]],
    rewards: Sequence[float],
    logprobs: Sequence[Sequence[float]],
    right: Mapping[Fork, Tensor],
    samples: int,
) -> Values:
    lengths = torch.tensor([len(r) for r in responses])
    n, width = len(responses), int(lengths.max())
    chance = torch.ones(n, width, dtype=torch.float64)  # p_t where sampled; 1 elsewhere: V_t = V_{t+1}
    other = torch.zeros(5, n, width, dtype=torch.float64)  # O: rate, of first half, of second, and its two variances
    bound = torch.zeros(n, width + 1, dtype=torch.float64)
    settled_by = torch.zeros(n, width, dtype=torch.float64)
    for row, ((sampled, bounds), scores) in enumerate(zip(plans, logprobs, strict=True)):
        size = len(scores)
        bound[row, : size + 1] = torch.tensor(bounds, dtype=torch.float64)
        p = torch.tensor(scores, dtype=torch.float64).exp().clamp(max=1)
        wanted = torch.tensor(sampled)
        chance[row, :size] = torch.where(wanted, p, 1.0)
        settled_by[row, :size] = torch.where(wanted, 0.0, 1 - p)
        for t, fork in forks[row].items():
            other[:, row, t] = _rates(right[fork])
    sampled_at = chance < 1
    away = 1 - chance
    value = torch.zeros(3, n, width + 1, dtype=torch.float64)
    value[:, torch.arange(n), lengths] = torch.tensor(rewards, dtype=torch.float64)
    variance = torch.zeros(2, n, width + 1, dtype=torch.float64)
    inside = torch.arange(width) < lengths[:, None]
    for t in reversed(range(width)):
        p, q = chance[:, t], away[:, t]
        value[..., t] = torch.where(inside[:, t], p * value[..., t + 1] + q * other[:3, :, t], value[..., t])
        variance[..., t] = torch.where(
            inside[:, t], p.square() * variance[..., t + 1] + q.square() * other[3:, :, t], variance[..., t]
        )
    effect = torch.where(inside, away * (value[..., 1:] - other[:3]), 0.0)
    noise = torch.where(inside, away.square() * (variance[..., 1:] + other[3:]), 0.0)
    return Values(
        mask=inside,
        value=value[0],
        se=variance[1].sqrt(),
        bound=bound,
        drawn=torch.where(sampled_at, samples, 0),
        effect=effect[0],
        effect_se=noise[1].sqrt(),
        effect_variance=noise[0],
        effect_bound=torch.where(inside, away * bound[:, 1:] + settled_by, 0.0),
        effect_halves=effect[1:],
        sampled=len(right),
    )


def _rates(right: Tensor) -> Tensor:
    """[M] -> [5]: success rate, those of the two halves, unbiased variance, squared standard error."""
    half = len(right) // 2
    first = right[:half] if half else right  # of one sample both halves are the sample
    return torch.stack([right.mean(), first.mean(), right[half:].mean(), *binomial(right)])


def _check(
    prompts: Sequence[Any],
    responses: Sequence[Sequence[int]],
    finish: Sequence[str],
    rewards: Sequence[float],
    problems: Sequence[Any],
    seeds: Sequence[int],
    logprobs: Sequence[Sequence[float]],
    samples: int,
    max_tokens: int,
    tolerance: float,
) -> None:
    if not responses or len({*map(len, (prompts, responses, finish, rewards, problems, seeds, logprobs))}) > 1:
        raise UserError("prefix values: every sequence needs one entry per response, and there must be one")
    if samples < 1 or not 0 <= tolerance < 1:
        raise UserError(f"prefix values: needs samples >= 1 and 0 <= tolerance < 1, not {samples} and {tolerance}")
    for row, (response, ended, scores) in enumerate(zip(responses, finish, logprobs, strict=True)):
        if len(response) != len(scores) or not response:
            raise UserError(
                f"prefix values: response {row} has {len(response)} tokens, {len(scores)} log-probabilities"
            )
        if len(response) > max_tokens or (ended == "length" and len(response) < max_tokens):
            raise UserError(
                f"prefix values: response {row} ({ended}, {len(response)} tokens) was not sampled with the limit of "
                f"{max_tokens} tokens; give the limit it was sampled with"
            )
        if rewards[row] not in (0.0, 1.0):
            raise UserError(f"prefix values: response {row} has reward {rewards[row]}; a success rate needs 0 or 1")

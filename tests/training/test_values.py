"""Monte Carlo values against brute force: a Markov chain as engine, whose every continuation can be enumerated."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tokencredit.sampling import Completion, Params, Request
from tokencredit.sampling.draw import noise
from tokencredit.study.errors import UserError
from tokencredit.training.values import Values, prefix_values, settle

EOS, LIMIT = 0, 5
# row: last token; column: next one. The prompt ends with token 3.
CHAIN = np.array([[1.0, 0, 0, 0], [0.2, 0.5, 0.25, 0.05], [0.3, 0.03, 0.07, 0.6], [0.05, 0.6, 0.05, 0.3]])
PROMPT = (1, 3)
PROBLEM = {"problem_id": "p"}


class Chain:
    """An engine whose next token depends on the last one only."""

    def __init__(self, chain: np.ndarray = CHAIN) -> None:
        self.chain = chain
        self.asked: list[tuple[Request, Params]] = []
        self.rows: dict[tuple[int, tuple[int, ...]], tuple[list[float], list[float]]] = {}

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        self.asked += [(r, params) for r in requests]
        return [self._one(r, params) for r in requests]

    def _one(self, request: Request, params: Params) -> Completion:
        last, tokens, scores = request.prompt[-1], [], []
        for u in noise(request.seed, params.max_tokens):
            row, cumulated = self._row(last, params.suppress)
            last = bisect.bisect_right(cumulated, u)
            tokens.append(last)
            scores.append(math.log(row[last]))
            if last in params.eos:
                return Completion(tuple(tokens), "stop", tuple(scores))
        return Completion(tuple(tokens), "length", tuple(scores))

    def _row(self, last: int, suppress: tuple[int, ...]) -> tuple[list[float], list[float]]:
        """Probabilities of the next token, and their running sums."""
        if (last, suppress) not in self.rows:
            row = self.chain[last].copy()
            row[list(suppress)] = 0
            row /= row.sum()
            self.rows[last, suppress] = row.tolist(), row.cumsum().tolist()
        return self.rows[last, suppress]


def reward(tokens: Sequence[int], finish: str) -> float:
    return float(sum(tokens) % 3 == 1 if finish == "stop" else tokens[-1] == 2)


def grade(problems: Sequence[Any], responses: Sequence[Sequence[int]], finish: Sequence[str]) -> list[float]:
    return [reward(r, f) for r, f in zip(responses, finish, strict=True)]


def exact(prefix: tuple[int, ...], chain: np.ndarray = CHAIN, limit: int = LIMIT) -> float:
    """The success rate of continuing a prefix, by enumeration."""
    if prefix and prefix[-1] == EOS:
        return reward(prefix, "stop")
    if len(prefix) == limit:
        return reward(prefix, "length")
    row = chain[prefix[-1] if prefix else PROMPT[-1]]
    return sum(p * exact((*prefix, token), chain, limit) for token, p in enumerate(row) if p > 0)


def every_response(chain: np.ndarray = CHAIN, limit: int = LIMIT) -> list[tuple[tuple[int, ...], str]]:
    """All responses the chain can give."""
    found = []
    open_: list[tuple[int, ...]] = [()]
    while open_:
        prefix = open_.pop()
        for token, p in enumerate(chain[prefix[-1] if prefix else PROMPT[-1]]):
            longer = (*prefix, token)
            if p > 0 and token == EOS:
                found.append((longer, "stop"))
            elif p > 0 and len(longer) == limit:
                found.append((longer, "length"))
            elif p > 0:
                open_.append(longer)
    return sorted(found)


def scores(response: Sequence[int], chain: np.ndarray = CHAIN) -> list[float]:
    path = (PROMPT[-1], *response)
    return [math.log(chain[a, b]) for a, b in itertools.pairwise(path)]


def measure(
    picked: Sequence[tuple[tuple[int, ...], str]], seeds: Sequence[int], samples: int = 16, tolerance: float = 0.0,
    engine: Chain | None = None, limit: int = LIMIT,
) -> Values:  # fmt: skip
    engine = engine or Chain()
    responses, finish = [r for r, _ in picked], [f for _, f in picked]
    return prefix_values(
        engine, [PROMPT] * len(picked), responses, finish, [reward(*p) for p in picked], [PROBLEM] * len(picked), grade,
        samples=samples, eos=(EOS,), max_tokens=limit, seeds=seeds, logprobs=[scores(r, engine.chain) for r in responses],
        tolerance=tolerance,
    )  # fmt: skip


def true_values(picked: Sequence[tuple[tuple[int, ...], str]], chain: np.ndarray = CHAIN) -> torch.Tensor:
    width = max(len(r) for r, _ in picked) + 1
    out = torch.zeros(len(picked), width, dtype=torch.float64)
    for row, (response, _) in enumerate(picked):
        out[row, : len(response) + 1] = torch.tensor([exact(response[:t], chain) for t in range(len(response) + 1)])
    return out


PICKED = every_response()[3::37]
REPEATS = 120


@pytest.fixture(scope="module")
def repeats() -> list[Values]:
    """The same responses measured many times with other seeds."""
    return [measure(PICKED, [1000 * k + i for i in range(len(PICKED))]) for k in range(REPEATS)]


def stacked(repeats: Sequence[Values], name: str) -> torch.Tensor:
    return torch.stack([getattr(v, name) for v in repeats])


def test_values_and_effects_are_unbiased(repeats: list[Values]) -> None:
    true = true_values(PICKED)
    for name, truth in (("value", true), ("effect", torch.where(repeats[0].mask, true.diff(dim=1), 0.0))):
        found = stacked(repeats, name)
        se = found.std(0) / len(repeats) ** 0.5
        z = (found.mean(0) - truth) / se.clamp(min=1e-9)
        assert z[se > 0].abs().max() < 4.5 and (found.mean(0) - truth)[se == 0].abs().max() < 1e-12


def test_standard_errors_are_calibrated(repeats: list[Values]) -> None:
    """Two of them cover about 95 %, and the unbiased variance is on average the variance seen."""
    true = true_values(PICKED)
    effect = stacked(repeats, "effect")
    moving = (repeats[0].drawn > 0) & (effect.std(0) > 0)
    for off, se in (
        (effect - true.diff(dim=1), stacked(repeats, "effect_se")),
        ((stacked(repeats, "value") - true)[:, :, :-1], stacked(repeats, "se")[:, :, :-1]),
    ):
        assert 0.92 < ((off / se)[:, moving].abs() < 2).double().mean() < 0.98
    seen, said = effect.var(0)[moving], stacked(repeats, "effect_variance").mean(0)[moving]
    assert (said / seen).mean() == pytest.approx(1, abs=0.05)
    assert bool((stacked(repeats, "effect_se") > 0)[:, repeats[0].drawn > 0].all())


def test_squared_effects_less_variance_and_products_of_halves_are_unbiased(repeats: list[Values]) -> None:
    truth = true_values(PICKED).diff(dim=1)[repeats[0].mask].square()
    effect, variance = (stacked(repeats, n)[:, repeats[0].mask] for n in ("effect", "effect_variance"))
    halves = stacked(repeats, "effect_halves")[:, :, repeats[0].mask]
    for estimate in (effect.square() - variance, halves[:, 0] * halves[:, 1]):
        se = estimate.std(0) / len(repeats) ** 0.5
        assert ((estimate.mean(0) - truth).abs() < 4.5 * se + 1e-12).all()
    assert (effect.square().mean(0) - truth).max() > 0.003, "without the correction noise looks like effect"


def test_halves_average_to_the_whole(repeats: list[Values]) -> None:
    assert torch.allclose(repeats[0].effect_halves.mean(0), repeats[0].effect)


def test_the_end_is_the_reward_and_effects_add_up(repeats: list[Values]) -> None:
    v = repeats[0]
    for row, (response, finish) in enumerate(PICKED):
        assert v.value[row, len(response)] == reward(response, finish)
        assert v.se[row, len(response)] == 0
        assert v.effect[row].sum() == pytest.approx(float(v.value[row, len(response)] - v.value[row, 0]))
        chance = torch.tensor(scores(response), dtype=torch.float64).exp()
        assert (v.effect[row, : len(response)].abs() <= 1 - chance + 1e-12).all(), "never more than 1 - p"
        assert (v.value[row, len(response) + 1 :] == 0).all()


def test_settling_is_within_its_bounds() -> None:
    """The mean over seeds may be off by the bound and no more; effects of settled tokens are at most their bound."""
    runs = [measure(PICKED, [77 * k + i for i in range(len(PICKED))], tolerance=0.5) for k in range(REPEATS)]
    v, true = runs[0], true_values(PICKED)
    settled = (v.drawn == 0) & v.mask
    assert 0.1 < settled.sum() / v.mask.sum() < 0.9
    inside = torch.cat([v.mask, torch.zeros(len(PICKED), 1, dtype=torch.bool)], 1)
    for name, truth, at in (("value", true, inside), ("effect", true.diff(dim=1), v.mask)):
        found = stacked(runs, name)[:, at]
        noise = 4.5 * found.std(0) / REPEATS**0.5 + 1e-12
        assert (
            (found.mean(0) - truth[at]).abs()
            <= getattr(v, f"{name}_bound" if name == "effect" else "bound")[at] + noise
        ).all()
    assert (v.effect[settled] == 0).all() and (v.effect_se[settled] == 0).all()
    assert 0 < float(v.bound.max()) <= 0.5


def test_the_bound_is_reached_where_everything_hangs_on_the_unlikely_tokens() -> None:
    """Whoever leaves 1, 1, 1, 0 ends right and whoever follows it ends wrong: the settled V_0 = 0 is off by its bound."""
    p = 0.9 * 0.99 * 0.99 * 0.8
    sampled, bound = settle([math.log(x) for x in (0.9, 0.99, 0.99, 0.8)], 0.5)
    assert not any(sampled)
    true_start = 1 - p  # P(leaving) x 1 + P(following) x 0
    assert bound[0] == pytest.approx(true_start - 0.0)


def test_settle_resets_nothing_and_never_passes_the_tolerance() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.choice([0.3, 0.9, 0.99, 0.999, 1.0], size=30)
        sampled, bound = settle([math.log(x) for x in p], 0.02)
        assert max(bound) <= 0.02
        worst = 0.0  # by brute force from the end: what the recursion of the worst case gives
        for t in reversed(range(30)):
            worst = p[t] * worst + (0 if sampled[t] else 1 - p[t])
            assert bound[t] == pytest.approx(worst, abs=1e-12)
            assert sampled[t] or worst <= 0.02
            assert not sampled[t] or p[t] * (worst / p[t]) + 1 - p[t] > 0.02 - 1e-12


def test_equal_seeds_give_equal_values_and_shared_forks_are_sampled_once() -> None:
    engine, twice = Chain(), Chain()
    one = measure(PICKED[:3], [5, 6, 7], engine=engine)
    again = measure([*PICKED[:3], *PICKED[:3]], [5, 6, 7, 8, 9, 10], engine=twice)
    assert torch.equal(again.effect[:3], one.effect) and torch.equal(again.effect[3:], one.effect)
    assert len(twice.asked) == len(engine.asked) and again.sampled == one.sampled
    other = measure(PICKED[:3], [15, 16, 17])
    assert not torch.equal(other.effect, one.effect)


def test_no_request_seed_is_used_twice_and_no_response_passes_the_limit() -> None:
    engine = Chain()
    seen: list[tuple[tuple[int, ...], str]] = []

    def noting(problems: Any, responses: Any, finish: Any) -> list[float]:
        seen.extend(zip(map(tuple, responses), finish, strict=True))
        return grade(problems, responses, finish)

    prefix_values(
        engine, [PROMPT] * len(PICKED), [r for r, _ in PICKED], [f for _, f in PICKED],
        [reward(*p) for p in PICKED], [PROBLEM] * len(PICKED), noting, samples=8, eos=(EOS,), max_tokens=LIMIT,
        seeds=list(range(len(PICKED))), logprobs=[scores(r) for r, _ in PICKED], tolerance=0.0,
    )  # fmt: skip
    assert len({r.seed for r, _ in engine.asked}) == len(engine.asked)
    possible = set(every_response())
    assert seen and set(seen) <= possible, "every continuation is a response the chain can give, ended as it would"


def test_what_does_not_belong_together_is_refused() -> None:
    def call(**more: Any) -> Values:
        given: dict[str, Any] = {
            "samples": 4, "eos": (EOS,), "max_tokens": LIMIT, "seeds": [1], "logprobs": [scores((1, 0))], "tolerance": 0.0
        }  # fmt: skip
        given |= {"finish": ["stop"], "rewards": [1.0]} | more
        return prefix_values(
            Chain(), [PROMPT], [(1, 0)], given.pop("finish"), given.pop("rewards"), [PROBLEM], grade, **given
        )

    call()
    for wrong, says in (
        ({"seeds": []}, "one entry per response"),
        ({"samples": 0}, "samples >= 1"),
        ({"tolerance": 1.0}, "tolerance < 1"),
        ({"logprobs": [[0.0]]}, "log-probabilities"),
        ({"max_tokens": 1}, "limit of 1 token"),
        ({"finish": ["length"]}, "not sampled with the limit"),
        ({"rewards": [0.5]}, "needs 0 or 1"),
    ):
        with pytest.raises(UserError, match=says):
            call(**wrong)


def test_the_fast_engine_gives_the_enumerated_values() -> None:
    """A random transformer over 6 tokens, responses of at most 3: 155 of them, all enumerated by its own forward pass."""
    from tests.sampling.models import build
    from tokencredit.sampling.fast import FastEngine

    model = build("qwen3-gqa", seed=3, vocab_size=6)
    engine = FastEngine.from_model(model, torch.device("cpu"), torch.float32)
    prompt = (2, 4, 5)

    def after(prefix: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=torch.tensor([[*prompt, *prefix]])).logits[0, -1].double().softmax(-1)

    def value(prefix: tuple[int, ...]) -> float:
        if prefix and (prefix[-1] == EOS or len(prefix) == 3):
            return reward(prefix, "stop" if prefix[-1] == EOS else "length")
        return sum(float(p) * value((*prefix, token)) for token, p in enumerate(after(prefix)))

    response = (1, 2, 4)
    logprobs = [float(after(response[:t])[response[t]].log()) for t in range(3)]
    v = prefix_values(
        engine, [prompt], [response], ["length"], [reward(response, "length")], [PROBLEM], grade,
        samples=4000, eos=(EOS,), max_tokens=3, seeds=[3], logprobs=[logprobs], tolerance=0.0,
    )  # fmt: skip
    true = torch.tensor([value(response[:t]) for t in range(4)], dtype=torch.float64)
    assert float(true.std()) > 0.05
    assert ((v.value[0] - true).abs() <= 4.5 * v.se[0] + 1e-9).all()
    assert float(v.se.max()) < 0.01

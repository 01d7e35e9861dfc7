"""How well a credit points at what the tokens did: scores of one credit over measured responses, with intervals.

x = |A~_t| / |A_i|, e the Monte Carlo effect, v its unbiased variance. Scores are ratios of sums over responses,
intervals from redrawing PROBLEMS (95 %). OURS: rank, mean over responses of Spearman's correlation of x and |e| (ties:
average ranks; constant x: 0; constant |e|: left out); rank_open, the same among sampled tokens only (three or more);
top20, share of sum |e| in the fifth of a response's tokens with most x (ties broken by chance, in exact expectation);
top20_sq, the same of sum (e^2 - v), which estimates squared true effects whatever the noise; mass20, share of sum x on
the fifth with most |e|; sign, share of tokens with |e| > 2 se where A~ has the sign of e (A~ = 0: one half), sign_mass
weighted by |e|; planted, share of sum x on planted_only tokens; share, of sum x by token category.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from tokencredit.study.seeds import derive

TOP = 0.2
SHUFFLES = 4
PLANTED_DECILE = 0.9
Array = np.ndarray


@dataclass(frozen=True)
class Measured:
    """One response's truth. Arrays over its tokens [T]."""

    problem: str
    effect: Array
    se: Array
    variance: Array
    halves: Array  # [2, T] effects by each half of the samples
    sampled: Array  # bool: not settled
    correct: bool = True
    category: tuple[str, ...] = ()
    planted: Array | None = None  # bool: tokens that only a planted feature moved; None: the problem has none

    def by_half(self, which: int) -> Measured:
        """The same response as one half of the samples saw it: twice the variance."""
        half = self.halves[which]
        return replace(
            self, effect=half, se=self.se * 2**0.5, variance=self.variance * 2, halves=np.stack([half, half])
        )


@dataclass(frozen=True)
class Credited:
    """What a method gives one response: token credit A~ [T] on its group advantage A (1 for signals and references)."""

    token: Array
    advantage: float = 1.0

    @property
    def weight(self) -> Array:
        """x = |A~| / |A| [T]."""
        return np.abs(self.token) / (abs(self.advantage) or 1.0)


@dataclass(frozen=True)
class Score:
    """A ratio of sums with its 95 % interval over problems. value is NaN where there is nothing to score."""

    name: str
    category: str
    value: float
    low: float
    high: float
    n: int  # responses that count (rank), or tokens (all others)
    problems: int


Parts = tuple[float, float, int]  # a response's numerator, denominator, and count
NOTHING: Parts = (0.0, 0.0, 0)


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's correlation with average ranks for ties; 0 where either is constant.

    >>> round(rank_correlation(np.array([1, 2, 2, 4]), np.array([1, 3, 2, 5])), 4)
    0.9487
    """
    a, b = rankdata(x), rankdata(y)
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else 0.0


def top_mass(x: Array, mass: Array, share: float = TOP) -> float:
    """Expected sum of `mass` over the share x T tokens with most x, ties broken at random, fractions counted.

    >>> top_mass(np.array([3.0, 1.0, 1.0, 1.0, 1.0]), np.array([4.0, 1.0, 2.0, 3.0, 2.0]), 0.4)
    6.0
    """
    budget = share * len(x)
    edge = np.sort(x)[::-1][math.ceil(budget) - 1]  # the level at which the budget runs out
    above, at = x > edge, x == edge
    return float(mass[above].sum() + (budget - above.sum()) / at.sum() * mass[at].sum())


def score_rank(credit: Array, weight: Array, truth: Measured) -> Parts:
    size = np.abs(truth.effect)
    if not np.ptp(size) > 0:
        return NOTHING
    return rank_correlation(weight, size), 1.0, 1


def score_rank_open(credit: Array, weight: Array, truth: Measured) -> Parts:
    size, at = np.abs(truth.effect), truth.sampled
    if at.sum() < 3 or not np.ptp(size[at]) > 0:
        return NOTHING
    return rank_correlation(weight[at], size[at]), 1.0, 1


def score_top(credit: Array, weight: Array, truth: Measured) -> Parts:
    size = np.abs(truth.effect)
    return top_mass(weight, size), float(size.sum()), len(size)


def score_top_squared(credit: Array, weight: Array, truth: Measured) -> Parts:
    size = truth.effect**2 - truth.variance
    return top_mass(weight, size), float(size.sum()), len(size)


def score_mass(credit: Array, weight: Array, truth: Measured) -> Parts:
    return top_mass(np.abs(truth.effect), weight), float(weight.sum()), len(weight)


def score_sign(credit: Array, weight: Array, truth: Measured) -> Parts:
    return _signs(credit, truth, np.ones(len(credit)))


def score_sign_mass(credit: Array, weight: Array, truth: Measured) -> Parts:
    return _signs(credit, truth, np.abs(truth.effect))


def _signs(credit: Array, truth: Measured, size: Array) -> Parts:
    sure = np.abs(truth.effect) > 2 * truth.se
    agree = np.where(credit == 0, 0.5, np.sign(credit) == np.sign(truth.effect)) * size
    return float(agree[sure].sum()), float(size[sure].sum()), int(sure.sum())


def score_planted(credit: Array, weight: Array, truth: Measured) -> Parts:
    if truth.planted is None:
        return NOTHING
    return float(weight[truth.planted].sum()), float(weight.sum()), len(weight)


def score_share(category: str) -> Callable[[Array, Array, Measured], Parts]:
    def score(credit: Array, weight: Array, truth: Measured) -> Parts:
        at = np.array([c == category for c in truth.category], dtype=bool)
        return float(weight[at].sum()), float(weight.sum()), int(at.sum())

    return score


SCORES: dict[str, Callable[[Array, Array, Measured], Parts]] = {
    "rank": score_rank,
    "rank_open": score_rank_open,
    "top20": score_top,
    "top20_sq": score_top_squared,
    "mass20": score_mass,
    "sign": score_sign,
    "sign_mass": score_sign_mass,
    "planted": score_planted,
}


APART = ("rank", "rank_open", "top20", "mass20")  # also for right and wrong responses apart
SIGNED = ("sign", "sign_mass")


class Redraw:
    """Problems redrawn with replacement, the same draws for every score. problems: of each response."""

    def __init__(self, problems: Sequence[str], draws: int, seed: int):
        names = sorted(set(problems))
        self.index = np.array([names.index(p) for p in problems])
        self.count = len(names)
        generator = np.random.Generator(np.random.Philox(key=seed))
        self.times = generator.multinomial(self.count, np.full(self.count, 1 / self.count), size=draws)  # [B, P]

    def score(self, name: str, category: str, parts: Sequence[Parts]) -> Score:
        """parts: one per response. The interval runs over the draws in which the score exists."""
        table = np.array([p[:2] for p in parts], dtype=np.float64)
        sums = np.zeros((self.count, 2))
        np.add.at(sums, self.index, table)
        top, bottom = self.times @ sums[:, 0], self.times @ sums[:, 1]
        total = sums.sum(0)
        value = float(total[0] / total[1]) if total[1] > 0 else float("nan")
        there = bottom > 0
        spread = np.quantile(top[there] / bottom[there], [0.025, 0.975]) if there.any() else (float("nan"),) * 2
        held = int((sums[:, 1] != 0).sum())
        return Score(name, category, value, float(spread[0]), float(spread[1]), sum(p[2] for p in parts), held)


def score_all(
    truth: Sequence[Measured],
    credits: Mapping[str, Sequence[Credited]],
    signals: Mapping[str, Sequence[Array]],
    draws: int,
    seed: int,
) -> dict[str, list[Score]]:
    """Name -> scores, of methods, of signals ("signal:...": sizes without a sign) and of references.

    credits: method -> what it gives each response; signals: name -> what is looked at [T], 0 or more.
    Beside them METHOD:shuffled and reference:NAME: uniform, random, oracle (|effect| itself: the best there is),
    split_half (effects by half of the samples scored on the other half's: what the noise allows, a little too low since
    each has half the samples). Scores of APART have categories right and wrong too.
    """
    redraw = Redraw([m.problem for m in truth], draws, seed)
    categories = sorted({c for m in truth for c in m.category})

    def scores(credit: Sequence[Credited], of: Sequence[Measured], signed: bool, shares: bool) -> list[Score]:
        each = [(c.token, c.weight, m) for c, m in zip(credit, of, strict=True)]
        parts = {k: [SCORES[k](*one) for one in each] for k in SCORES if signed or k not in SIGNED}
        found = [redraw.score(k, "all", p) for k, p in parts.items()]
        for kind, correct in (("right", True), ("wrong", False)):
            here = [m.correct == correct for m in of]
            for k in APART:
                chosen = [p if keep else NOTHING for p, keep in zip(parts[k], here, strict=True)]
                found.append(redraw.score(k, kind, chosen))
        for category in categories if shares else ():
            found.append(redraw.score("share", category, [score_share(category)(*one) for one in each]))
        return found

    out: dict[str, list[Score]] = {}
    known: dict[bytes, str] = {}  # credits that are the same to the last bit are scored once
    for method, credit in credits.items():
        key = b"".join(c.token.tobytes() + np.float64(c.advantage).tobytes() for c in credit)
        twin = known.setdefault(key, method)
        if twin == method:
            out[method] = scores(credit, truth, True, True)
            out[f"{method}:shuffled"] = shuffled(credit, truth, redraw, derive(seed, "shuffle", method))
        else:
            out[method], out[f"{method}:shuffled"] = out[twin], out[f"{twin}:shuffled"]
    for name, signal in signals.items():
        out[f"signal:{name}"] = scores([Credited(s) for s in signal], truth, False, False)
    out["reference:uniform"] = scores([Credited(np.ones(len(m.effect))) for m in truth], truth, False, True)
    places = [Credited(np.arange(len(m.effect)) + 1.0) for m in truth]
    drawn = shuffled(places, truth, redraw, derive(seed, "random"))
    out["reference:random"] = [s for s in drawn if s.name not in SIGNED]
    out["reference:oracle"] = scores([Credited(m.effect) for m in truth], truth, True, True)
    second = [m.by_half(1) for m in truth]
    out["reference:split_half"] = scores([Credited(m.halves[0]) for m in truth], second, True, False)
    return out


def shuffled(credit: Sequence[Credited], truth: Sequence[Measured], redraw: Redraw, seed: int) -> list[Score]:
    """Scores of a credit permuted within each response: each response's parts averaged over SHUFFLES permutations."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    found: dict[str, list[Parts]] = {name: [] for name in SCORES}
    for one, m in zip(credit, truth, strict=True):
        orders = [generator.permutation(len(one.token)) for _ in range(SHUFFLES)]
        for name, score in SCORES.items():
            parts = [score(one.token[order], one.weight[order], m) for order in orders]
            top, bottom = np.mean([p[:2] for p in parts], axis=0).tolist()
            found[name].append((top, bottom, parts[0][2]))
    return [redraw.score(name, "all", parts) for name, parts in found.items()]


def planted_only(moved: Sequence[Array | None], effect: Sequence[Array], se: Sequence[Array]) -> list[Array | None]:
    """Tokens that only a planted feature moved, per response (None where its problem has no such feature).

    moved: |log p(token | prompt) - log p(token | prompt without the planted feature)|. A token counts when `moved` is
    in the top tenth over all tokens of responses to problems with a planted feature, and its effect is not
    significant: |effect| <= 2 se.
    """
    every = [m for m in moved if m is not None]
    if not every:
        return [None] * len(moved)
    threshold = float(np.quantile(np.concatenate(every), PLANTED_DECILE))
    return [
        None if m is None else (m >= threshold) & (np.abs(e) <= 2 * s)
        for m, e, s in zip(moved, effect, se, strict=True)
    ]

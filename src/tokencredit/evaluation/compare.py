"""Is a difference evidence? Paired comparisons with intervals; every result carries its n.

Two things vary: the training run (seed) and the problems asked. `over_seeds` pairs two methods by seed and
treats the benchmark as fixed; `over_problems` pairs them by problem and treats the runs as fixed, the
samples of a problem being one cluster; `hierarchical_bootstrap` redraws seeds, problems and samples together.
Which of them a claim needs depends on what it is about; the report leads with seeds, as the papers do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokencredit.study.errors import UserError

MAX_SIGN_FLIPS = 20  # 2^20 sign patterns; studies have a handful of seeds


@dataclass(frozen=True)
class Comparison:
    """A mean difference a - b. `n` counts `unit`s; statistics that n does not allow are None.

    low, high: two-sided interval at `level`. values: one difference per unit, by its key.
    """

    difference: float
    n: int
    unit: str  # seeds | problems
    level: float = 0.95
    se: float | None = None
    t: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    sign_flip_p: float | None = None
    values: Mapping[Hashable, float] = field(default_factory=dict)

    @property
    def evidence(self) -> bool | None:
        """Whether the interval excludes 0; None where there is no interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


def over_seeds(
    a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95, unit: str = "seeds"
) -> Comparison | None:
    """Paired t comparison over the seeds that a and b (seed -> score) both have; None where they share none.

    >>> r = over_seeds({0: 41.2, 1: 43.0, 2: 42.1}, {0: 39.9, 1: 42.2, 2: 41.8})
    >>> round(r.difference, 3), r.n, r.sign_flip_p
    (0.8, 3, 0.25)
    """
    shared = sorted(set(a) & set(b))
    if not shared:
        return None
    values: dict[Hashable, float] = {seed: a[seed] - b[seed] for seed in shared}
    return _t_comparison(values, level, unit, sign_flip_p(list(values.values())))


def over_problems(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
) -> Comparison:
    """Paired comparison of rows a[i] - b[i], clustered; without `clusters` every row is its own problem.

    Rows: one per problem, or one per (seed, problem) with the problem as cluster. The mean is over rows; its
    standard error is the cluster-robust sqrt(g/(g-1) sum_c (sum_{i in c} (d_i - mean d))^2) / rows, g
    clusters, which for one row per cluster is sd / sqrt(g); the interval is Student's with g - 1 degrees of
    freedom. UserError: empty, or unequal lengths.
    """
    d = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    labels = list(range(d.size)) if clusters is None else list(clusters)
    if d.size == 0 or d.shape != np.shape(a) or len(labels) != d.size:
        raise UserError("comparison over problems: a, b and clusters must be equally long and not empty")
    keys = sorted(set(labels), key=repr)
    mean = math.fsum(d) / d.size
    excess = dict.fromkeys(keys, 0.0)
    for label, value in zip(labels, d, strict=True):
        excess[label] += value - mean
    g = len(keys)
    if g < 2:
        return Comparison(mean, g, "problems", level)
    se = math.sqrt(g / (g - 1) * math.fsum(v * v for v in excess.values())) / d.size
    return _with_interval(mean, se, g, "problems", level, float(np.abs(d).max()))


def over_strata(parts: Sequence[Comparison], level: float = 0.95) -> Comparison | None:
    """Macro mean of independent comparisons over problems, one per benchmark; None where one has no se.

    se = sqrt(sum se_b^2) / B; Student's interval, Welch-Satterthwaite degrees of freedom. n: all problems.
    """
    se = [part.se for part in parts if part.se is not None]
    if not parts or len(se) < len(parts):
        return None
    count, variances = len(parts), [s * s for s in se]
    total = math.fsum(variances)
    spread = math.fsum(v * v / (part.n - 1) for v, part in zip(variances, parts, strict=True))
    freedom = total**2 / spread if spread > 0 else 1.0
    mean = math.fsum(part.difference for part in parts) / count
    scale = max(abs(part.difference) for part in parts)
    problems = sum(part.n for part in parts)
    return _with_interval(mean, math.sqrt(total) / count, problems, "problems", level, scale, freedom=freedom)


def unpaired_se(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Standard error of mean a - mean b as if the rows were not paired: shows what pairing buys."""
    return math.sqrt(sum(float(np.var(v, ddof=1)) / len(v) for v in (a, b)))


def _t_comparison(values: Mapping[Hashable, float], level: float, unit: str, flip: float) -> Comparison:
    d = list(values.values())
    n, mean = len(d), math.fsum(d) / len(d)
    if n < 2:
        return Comparison(mean, n, unit, level, sign_flip_p=flip, values=values)
    se = math.sqrt(math.fsum((v - mean) ** 2 for v in d) / (n - 1) / n)
    return _with_interval(mean, se, n, unit, level, max(map(abs, d)), flip, values)


def _with_interval(
    mean: float,
    se: float,
    n: int,
    unit: str,
    level: float,
    scale: float,
    flip: float | None = None,
    values: Mapping[Hashable, float] | None = None,
    freedom: float | None = None,
) -> Comparison:
    from scipy.stats import t as student

    values = values or {}
    if se <= 1e-12 * scale or scale == 0:  # no spread: a t statistic would be rounding noise
        return Comparison(mean, n, unit, level, 0.0, sign_flip_p=flip, values=values)
    freedom = freedom if freedom is not None else n - 1
    t, half = mean / se, float(student.ppf(0.5 + level / 2, freedom)) * se
    p = float(2 * student.sf(abs(t), freedom))
    return Comparison(mean, n, unit, level, se, t, p, mean - half, mean + half, flip, values)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided p of the sign-flip test: share of the 2^n sign patterns with |sum| at least as large.

    Its floor is `sign_flip_floor(n)`: five seeds can never show less than 0.0625.
    """
    d = [float(v) for v in differences]
    if not 1 <= len(d) <= MAX_SIGN_FLIPS:
        raise UserError(f"sign-flip test: needs 1 to {MAX_SIGN_FLIPS} differences, got {len(d)}")
    total = np.zeros(1)
    for value in d:
        total = np.concatenate([total + value, total - value])
    # equal sums in another order differ in the last bits and must count as ties
    return float(np.mean(np.abs(total) >= abs(math.fsum(d)) - 1e-9 * math.fsum(map(abs, d))))


def sign_flip_floor(n: int) -> float:
    """The smallest p that n differences can reach: 2 / 2^n (all signs alike, or all reversed)."""
    return min(1.0, 2.0 / 2**n)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p, in the order given: controls the chance of any false claim in the family.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, floor = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        floor = max(floor, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = floor
    return adjusted


def wilson(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share: `correct` of n INDEPENDENT trials (one sample per problem).

    >>> tuple(round(v, 4) for v in wilson(15, 30))
    (0.3315, 0.6685)
    """
    from scipy.stats import norm

    if n < 1 or not 0 <= correct <= n:
        raise UserError(f"Wilson interval: {correct} of {n} is impossible")
    z = float(norm.ppf(0.5 + level / 2))
    share, shrink = correct / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Bootstrap:
    """Distribution of a redrawn mean: standard deviation and percentile interval."""

    mean: float
    sd: float
    low: float
    high: float
    n: int
    draws: int
    exact: bool


def bootstrap_over_problems(
    values: Sequence[float] | np.ndarray, seed: int = 0, draws: int = 10_000, level: float = 0.95
) -> Bootstrap:
    """Redraw the P problems with return: all P^P ways where these are at most `draws`, else `draws` ways."""
    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    if count < 1:
        raise UserError("bootstrap: no problems")
    exact = count**count <= draws
    if exact:
        picks = np.asarray(list(itertools.product(range(count), repeat=count)))
    else:
        picks = np.random.default_rng(seed).integers(count, size=(draws, count))
    return _bootstrap(math.fsum(values) / count, values[picks].mean(axis=1), count, level, exact)


def hierarchical_bootstrap(
    a: Sequence[np.ndarray],
    b: Sequence[np.ndarray],
    samples: Sequence[int],
    seed: int,
    draws: int = 2_000,
    level: float = 0.95,
) -> Bootstrap:
    """Bootstrap of the macro difference a - b that redraws seeds, then problems, then samples.

    a, b: per benchmark the right samples, int [S, P_b] (same seeds and problems in both, redrawn as pairs);
    samples: per benchmark the samples per problem. Seeds are redrawn once for all benchmarks, problems within
    each benchmark once for all seeds, samples per (seed, problem). n = S. Deterministic in `seed`.
    """
    if not a or len(a) != len(b) or len(a) != len(samples):
        raise UserError("hierarchical bootstrap: needs the same benchmarks for both methods")
    seeds = a[0].shape[0]
    if seeds < 1 or any(x.shape != y.shape or x.shape[0] != seeds for x, y in zip(a, b, strict=True)):
        raise UserError("hierarchical bootstrap: needs the same seeds and problems for both methods")
    rng = np.random.default_rng(seed)
    point = math.fsum((x - y).mean() / n for x, y, n in zip(a, b, samples, strict=True)) / len(a)
    means, runs = np.zeros(draws), drawn_counts(rng, draws, seeds)
    for x, y, n in zip(a, b, samples, strict=True):
        problems = drawn_counts(rng, draws, x.shape[1])
        right = _redrawn(rng, x, n, runs, problems) - _redrawn(rng, y, n, runs, problems)
        means += right / (n * x.size * len(a))
    return _bootstrap(point, means, seeds, level, False)


def drawn_counts(rng: np.random.Generator, draws: int, count: int) -> np.ndarray:
    """How often each of `count` things comes when as many are drawn with return, float64 [draws, count]."""
    picks = rng.integers(count, size=(draws, count)) + np.arange(draws)[:, None] * count
    return np.bincount(picks.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float64)


def _redrawn(
    rng: np.random.Generator, correct: np.ndarray, samples: int, runs: np.ndarray, problems: np.ndarray
) -> np.ndarray:
    """Right samples in every draw, [R], of runs [R, S] and problems [R, P]. correct: [S, P], right of `samples`.

    n samples redrawn from a problem with c right of n: Binomial(n, c/n). m such problems together: Binomial(m n, c/n).
    """
    cells = np.zeros((len(runs), samples + 1))  # drawn cells by their number of right samples
    for s, counts in enumerate(correct):
        cells += runs[:, s, None] * (problems @ (counts[:, None] == np.arange(samples + 1)).astype(np.float64))
    trials = samples * np.rint(cells).astype(np.int64)
    return rng.binomial(trials, np.arange(samples + 1) / samples).sum(axis=1)


def _bootstrap(point: float, means: np.ndarray, n: int, level: float, exact: bool) -> Bootstrap:
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(means, [tail, 100 - tail])
    return Bootstrap(point, float(means.std()), float(low), float(high), n, len(means), exact)


def verdict(result: Comparison | None, name: str, baseline: str, scale: float = 100.0, unit: str = "points") -> str:
    """One or two plain sentences: the difference, its interval and n, and whether this is evidence.

    Scores are multiplied by `scale` (shares become percentage points). Never claims more than the interval
    shows, and says where the number of seeds itself forbids a small p.
    """
    if result is None:
        return f"{name} and {baseline} have no seed in common yet: nothing to compare."
    size = f"{abs(result.difference) * scale:.2f} {unit}"
    where = "above" if result.difference > 0 else "below"
    many = f"{result.n} {result.unit if result.n != 1 else result.unit.removesuffix('s')}"
    if result.difference == 0 and result.se in (0.0, None):
        return f"{name} and {baseline} score the same ({many}): no difference to judge."
    if result.low is None or result.high is None:
        why = "one alone has no interval" if result.n < 2 else "they are all equal and give no interval"
        return f"{name} is {size} {where} {baseline} ({many}; {why}): not evidence by itself."
    interval = f"{result.level * 100:g} % interval {result.low * scale:+.2f} to {result.high * scale:+.2f}"
    says = "evidence of a difference" if result.evidence else "no evidence of one, the interval holds 0"
    text = f"{name} is {size} {where} {baseline} ({interval}, {many}): {says}."
    if result.sign_flip_p is not None:
        text += f" Sign-flip p = {result.sign_flip_p:.4g}; its floor with {many} is 2/2^{result.n}"
        text += f" = {sign_flip_floor(result.n):.4g}."
    return text

"""How much longer a method's answers are, and what of its gain is left at the baseline's length.

    equal_length.csv   one row per method and benchmark (macro: their mean)

gain:    accuracy of the method minus the baseline's, as drawn
equal:   the same where an answer counts only within the limit, the shortest length that holds 95 % of the baseline's
         answers to the benchmark: what such a limit would have left of these very samples. A method whose lengths are
         the baseline's keeps nearly all of its gain
share:   equal / gain, only where the gain's interval over the seeds and the one that redraws problems too exclude 0
half:    as equal, with the baseline's median length as limit
matched: difference between answers to one problem, of one run, in one length class (fifths of the baseline's lengths),
         weighted by the baseline's answers; only classes that both have, `overlap` of the baseline's answers. An
         association: an answer's length is not set by hand, and a wrong turn makes answers long

Limits and classes are of each benchmark, over all shared runs; the intervals do not redraw them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tokencredit.analysis.budgets import within
from tokencredit.analysis.side_by_side import HEAD, Pair
from tokencredit.evaluation.compare import over_seeds
from tokencredit.evaluation.metrics import Outcomes
from tokencredit.evaluation.twoway import Redraws

COLUMNS = (
    *HEAD, "seeds", "length", "baseline_length", "ratio", "ratio_low", "ratio_high",
    "truncated", "baseline_truncated", "per_1000", "baseline_per_1000",
    "per_1000_difference", "per_1000_low", "per_1000_high",
    "gain", "gain_low", "gain_high", "limit", "equal", "equal_low", "equal_high", "equal_boot_low", "equal_boot_high",
    "share", "share_low", "share_high", "half_limit", "half", "half_low", "half_high",
    "matched", "matched_low", "matched_high", "overlap",
)  # fmt: skip
PerProblem = Callable[[Outcomes], np.ndarray]
Interval = tuple[float | None, float | None, float | None]  # estimate, low, high
HELD = 0.95  # of the baseline's answers within the limit
CLASSES = 5


def rows(found: Iterable[Pair], redraws: Redraws) -> list[dict[str, Any]]:
    return [
        {**pair.head, "seeds": len(pair.seeds), **_lengths(pair), **_equal(pair, redraws), **_matched(pair)}
        for pair in found
    ]


def _lengths(pair: Pair) -> dict[str, Any]:
    length, baseline_length = (_means(side, lambda o: o.tokens / o.samples) for side in (pair.ours, pair.theirs))
    truncated, baseline_truncated = (
        _means(side, lambda o: o.truncated / o.samples) for side in (pair.ours, pair.theirs)
    )
    right, baseline_right = (_means(side, lambda o: o.rate) for side in (pair.ours, pair.theirs))
    ratio = _paired(pair, np.log(length / baseline_length))
    dense, baseline_dense = 1000 * right / length, 1000 * baseline_right / baseline_length
    r = _paired(pair, dense - baseline_dense)
    return {
        "length": float(length.mean()), "baseline_length": float(baseline_length.mean()),
        **_named("ratio", map(_exp, ratio)),
        "truncated": float(truncated.mean()), "baseline_truncated": float(baseline_truncated.mean()),
        "per_1000": float(dense.mean()), "baseline_per_1000": float(baseline_dense.mean()),
        **dict(zip(("per_1000_difference", "per_1000_low", "per_1000_high"), r, strict=True)),
    }  # fmt: skip


def _equal(pair: Pair, redraws: Redraws) -> dict[str, Any]:
    limits = [[holding(runs, share) for runs in pair.theirs] for share in (HELD, 0.5)]
    gain = [_stack(a, lambda o: o.rate) - _stack(b, lambda o: o.rate) for a, b in _sides(pair)]
    equal, half = (
        [_within(a, at) - _within(b, at) for (a, b), at in zip(_sides(pair), each, strict=True)] for each in limits
    )
    total, left, short = (_over_runs(pair, cells) for cells in (gain, equal, half))
    both = [np.stack([g, e], axis=2) for g, e in zip(gain, equal, strict=True)]
    drawn = redraws.of(pair.seeds, pair.questions).means(both)
    low, high = np.percentile(drawn[:, 1], [2.5, 97.5])
    alone = len(pair.benchmarks) == 1
    return {
        **_named("gain", total), **_named("equal", left), **_named("half", short),
        "equal_boot_low": float(low), "equal_boot_high": float(high),
        **_share(total, left[0], drawn),
        "limit": limits[0][0] if alone else None, "half_limit": limits[1][0] if alone else None,
    }  # fmt: skip


def holding(runs: Sequence[Outcomes], share: float) -> int:
    """The shortest length that holds `share` of these answers; problems weigh alike, and so do a problem's samples."""
    tokens = np.concatenate([o.draws.tokens for o in runs])
    weight = np.concatenate([1 / (o.samples[o.draws.problem] * len(o.problems)) for o in runs])
    order = np.argsort(tokens, kind="stable")
    held = np.cumsum(weight[order])
    return int(tokens[order][np.searchsorted(held, share * held[-1] * (1 - 1e-12))])


def _sides(pair: Pair) -> list[tuple[tuple[Outcomes, ...], tuple[Outcomes, ...]]]:
    return list(zip(pair.ours, pair.theirs, strict=True))


def _stack(runs: Sequence[Outcomes], per_problem: PerProblem) -> np.ndarray:
    return np.stack([per_problem(o) for o in runs])


def _within(runs: Sequence[Outcomes], limit: int) -> np.ndarray:
    """Share of a problem's samples that count within the limit, [S, P]."""
    return _stack(runs, lambda o: within(o, [limit])[:, 0])


def _matched(pair: Pair) -> dict[str, float | None]:
    parts = [matched_cells(a, b) for a, b in _sides(pair)]
    # sums of differences and of weights per run: the ratio is that of the means over benchmarks
    difference, weight = (np.mean([part[i].mean(axis=1) for part in parts], axis=0) for i in (0, 1))
    r = _paired(pair, difference / weight) if (weight > 0).all() else (None, None, None)
    return {**_named("matched", r), "overlap": float(weight.mean())}


def matched_cells(ours: Sequence[Outcomes], theirs: Sequence[Outcomes]) -> tuple[np.ndarray, np.ndarray]:
    """Weighted differences and weights of the classes that both sides have, summed over classes: [S, P] each."""
    edges = [holding(theirs, (i + 1) / CLASSES) for i in range(CLASSES - 1)]
    difference, weight = [], []
    for a, b in zip(ours, theirs, strict=True):
        (n_a, right_a), (n_b, right_b) = _classes(a, edges), _classes(b, edges)
        both = (n_a > 0) & (n_b > 0)
        w = np.where(both, n_b / b.samples[:, None], 0.0)
        d = right_a / np.maximum(n_a, 1) - right_b / np.maximum(n_b, 1)
        difference.append((w * d).sum(axis=1))
        weight.append(w.sum(axis=1))
    return np.stack(difference), np.stack(weight)


def _classes(o: Outcomes, edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Samples, and right ones, by problem and length class, [P, CLASSES]."""
    place = o.draws.problem * CLASSES + np.searchsorted(edges, o.draws.tokens)
    size = len(o.problems) * CLASSES
    counts = [np.bincount(place, weights=w, minlength=size) for w in (None, o.draws.correct)]
    return counts[0].reshape(-1, CLASSES), counts[1].reshape(-1, CLASSES)


def _means(side: Sequence[Sequence[Outcomes]], per_problem: PerProblem) -> np.ndarray:
    """Mean over benchmarks of the mean over problems, per run: [S]."""
    return np.mean([[per_problem(o).mean() for o in runs] for runs in side], axis=0)


def _over_runs(pair: Pair, cells: Sequence[np.ndarray]) -> Interval:
    """Mean over benchmarks of the mean over problems of [S, P], and its interval over the runs."""
    return _paired(pair, np.mean([x.mean(axis=1) for x in cells], axis=0))


def _paired(pair: Pair, differences: np.ndarray) -> Interval:
    """Mean of one difference per run, with Student's interval."""
    r = over_seeds(dict(zip(pair.seeds, differences.tolist(), strict=True)), dict.fromkeys(pair.seeds, 0.0))
    assert r is not None  # a pair has a seed
    return r.difference, r.low, r.high


def _named(name: str, r: Iterable[float | None]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), r, strict=True))


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def _share(total: Interval, left: float | None, drawn: np.ndarray) -> dict[str, float | None]:
    """equal / gain with the percentile interval of its draws. drawn: [R, 2], gain and equal."""
    gain, low, high = total
    edges = np.percentile(drawn[:, 0], [2.5, 97.5])
    sure = low is not None and high is not None and (low > 0 or high < 0) and (edges[0] > 0 or edges[1] < 0)
    if not sure or gain is None or left is None:
        return _named("share", (None, None, None))
    ratio = drawn[:, 1] / np.where(drawn[:, 0] == 0, np.nan, drawn[:, 0])
    return _named("share", (left / gain, *np.nanpercentile(ratio, [2.5, 97.5]).tolist()))

"""How much longer a method's answers are, and what of its gain is left where both spend equally many tokens.

    equal_length.csv   one row per method and benchmark (macro: their mean)

The longer of the two, by mean length on the benchmark, is cut off at the longest limit C under which its answers take
no more tokens on average than the shorter one's do uncut:

    mean min(length, C) <= mean length of the shorter;   a cut answer counts where it is right and at most C long

gain:   accuracy of the method minus the baseline's, as drawn
equal:  the same with the longer side cut at C
share:  equal / gain, only where the gain's interval over the seeds and the one that redraws problems too exclude 0

Methods of equal length keep all of their gain. C is one number per benchmark; the intervals do not redraw it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tokencredit.analysis.budgets import mean_length
from tokencredit.analysis.side_by_side import HEAD, Pair
from tokencredit.evaluation.compare import over_seeds
from tokencredit.evaluation.metrics import Outcomes
from tokencredit.evaluation.twoway import Redraws

COLUMNS = (
    *HEAD, "seeds", "length", "baseline_length", "ratio", "ratio_low", "ratio_high",
    "truncated", "baseline_truncated", "per_1000", "baseline_per_1000",
    "per_1000_difference", "per_1000_low", "per_1000_high",
    "gain", "gain_low", "gain_high", "equal", "equal_low", "equal_high", "equal_boot_low", "equal_boot_high",
    "share", "share_low", "share_high", "cut", "limit",
)  # fmt: skip


def rows(found: Iterable[Pair], redraws: Redraws) -> list[dict[str, Any]]:
    return [{**pair.head, "seeds": len(pair.seeds), **_lengths(pair), **_equal(pair, redraws)} for pair in found]


def _lengths(pair: Pair) -> dict[str, Any]:
    length, baseline_length = (_means(side, lambda o: o.tokens / o.samples) for side in (pair.ours, pair.theirs))
    truncated, baseline_truncated = (
        _means(side, lambda o: o.truncated / o.samples) for side in (pair.ours, pair.theirs)
    )
    right, baseline_right = (_means(side, lambda o: o.rate) for side in (pair.ours, pair.theirs))
    ratio = _paired(pair, np.log(length), np.log(baseline_length))
    dense, baseline_dense = 1000 * right / length, 1000 * baseline_right / baseline_length
    r = _paired(pair, dense, baseline_dense)
    return {
        "length": float(length.mean()), "baseline_length": float(baseline_length.mean()),
        **dict(zip(("ratio", "ratio_low", "ratio_high"), map(_exp, ratio), strict=True)),
        "truncated": float(truncated.mean()), "baseline_truncated": float(baseline_truncated.mean()),
        "per_1000": float(dense.mean()), "baseline_per_1000": float(baseline_dense.mean()),
        **dict(zip(("per_1000_difference", "per_1000_low", "per_1000_high"), r, strict=True)),
    }  # fmt: skip


def _equal(pair: Pair, redraws: Redraws) -> dict[str, Any]:
    longer = [mean_length(a) >= mean_length(b) for a, b in zip(pair.ours, pair.theirs, strict=True)]
    limits = [
        spending_limit(a if long else b, mean_length(b if long else a))
        for a, b, long in zip(pair.ours, pair.theirs, longer, strict=True)
    ]
    ours = [_right(a, c if long else None) for a, c, long in zip(pair.ours, limits, longer, strict=True)]
    theirs = [_right(b, None if long else c) for b, c, long in zip(pair.theirs, limits, longer, strict=True)]
    gain = [_right(a) - _right(b) for a, b in zip(pair.ours, pair.theirs, strict=True)]
    equal = [a - b for a, b in zip(ours, theirs, strict=True)]
    total, left = (_paired(pair, *_over_problems(cells)) for cells in (gain, equal))
    both = [np.stack([g, e], axis=2) for g, e in zip(gain, equal, strict=True)]
    drawn = redraws.of(pair.seeds, pair.questions).means(both)
    low, high = np.percentile(drawn[:, 1], [2.5, 97.5])
    alone = len(limits) == 1
    return {
        **dict(zip(("gain", "gain_low", "gain_high"), total, strict=True)),
        **dict(zip(("equal", "equal_low", "equal_high"), left, strict=True)),
        "equal_boot_low": float(low), "equal_boot_high": float(high),
        **_share(total, left[0], drawn),
        "cut": ("method" if longer[0] else "baseline") if len(set(longer)) == 1 else "both",
        "limit": limits[0] if alone else None,
    }  # fmt: skip


def spending_limit(runs: Sequence[Outcomes], target: float) -> int:
    """The longest limit under which these answers take at most `target` tokens on average; 0 where none does.

    A problem's samples weigh the same, and so do problems and runs. The longest answer where nothing has to be cut.
    """
    tokens = np.concatenate([o.draws.tokens for o in runs])
    weight = np.concatenate([1 / (o.samples[o.draws.problem] * len(o.problems) * len(runs)) for o in runs])
    low, high = 0, int(tokens.max())
    while low < high:
        middle = (low + high + 1) // 2
        if math.fsum(np.minimum(tokens, middle) * weight) <= target * (1 + 1e-12):
            low = middle
        else:
            high = middle - 1
    return low


def _right(runs: Sequence[Outcomes], limit: int | None = None) -> np.ndarray:
    """Share of right samples of at most `limit` tokens, [S, P]."""
    if limit is None:
        return np.stack([o.rate for o in runs])
    return np.stack([_sum(o, o.draws.correct & (o.draws.tokens <= limit)) / o.samples for o in runs])


def _sum(o: Outcomes, values: np.ndarray) -> np.ndarray:
    return np.bincount(o.draws.problem, weights=values, minlength=len(o.problems))


def _means(side: Sequence[Sequence[Outcomes]], per_problem: Any) -> np.ndarray:
    """Mean over benchmarks of the mean over problems, per run: [S]."""
    return np.mean([[per_problem(o).mean() for o in runs] for runs in side], axis=0)


def _over_problems(cells: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    each = np.mean([x.mean(axis=1) for x in cells], axis=0)
    return each, np.zeros_like(each)


def _paired(pair: Pair, a: np.ndarray, b: np.ndarray) -> tuple[float, float | None, float | None]:
    r = over_seeds(dict(zip(pair.seeds, a.tolist(), strict=True)), dict(zip(pair.seeds, b.tolist(), strict=True)))
    assert r is not None  # a pair has a seed
    return r.difference, r.low, r.high


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def _share(total: tuple[float, float | None, float | None], left: float, drawn: np.ndarray) -> dict[str, float | None]:
    """equal / gain with the percentile interval of its draws. drawn: [R, 2], gain and equal."""
    gain, low, high = total
    sure = low is not None and high is not None and (low > 0 or high < 0)
    edges = np.percentile(drawn[:, 0], [2.5, 97.5])
    if not sure or edges[0] <= 0 <= edges[1]:
        return {"share": None, "share_low": None, "share_high": None}
    ratio = drawn[:, 1] / np.where(drawn[:, 0] == 0, np.nan, drawn[:, 0])
    share_low, share_high = np.nanpercentile(ratio, [2.5, 97.5])
    return {"share": left / gain, "share_low": float(share_low), "share_high": float(share_high)}

"""Method minus baseline in pass@k, for every k of the ladder, with an interval over runs and problems.

pass_differences.csv   one row per method, benchmark (macro: their mean) and k
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from tokencredit.analysis.side_by_side import CONTRAST, HEAD, Pair, contrasts
from tokencredit.evaluation.metrics import Outcomes, ladder, pass_at_k
from tokencredit.evaluation.twoway import Redraws

COLUMNS = (*HEAD, "k", *CONTRAST)


def rows(found: Iterable[Pair], redraws: Redraws) -> list[dict[str, Any]]:
    out = []
    for pair in found:
        ks = ladder(pair.samples)
        ours, theirs = ([table(side, ks) for side in sides] for sides in (pair.ours, pair.theirs))
        out += [
            {**pair.head, "k": k, **contrast}
            for k, contrast in zip(ks, contrasts(pair, ours, theirs, redraws), strict=True)
        ]
    return out


def table(runs: Iterable[Outcomes], ks: Iterable[int]) -> np.ndarray:
    """pass@k [S, P, K] of every run and problem. UserError where a k exceeds a problem's samples."""
    return np.stack([np.stack([_column(o, k) for k in ks], axis=1) for o in runs])


def _column(o: Outcomes, k: int) -> np.ndarray:
    out = np.empty(len(o.problems))
    for n in np.unique(o.samples).tolist():
        out[o.samples == n] = _by_count(n, k)[o.correct[o.samples == n]]
    return out


@functools.cache
def _by_count(n: int, k: int) -> np.ndarray:
    """pass@k of 0 to n right samples of n, [n + 1]."""
    return np.asarray([pass_at_k(c, n, k) for c in range(n + 1)])

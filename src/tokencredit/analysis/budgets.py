"""Accuracy within B tokens, and pass@k for equal total tokens, from the stored samples.

An answer counts within B tokens where it is right, ended by itself and is at most B tokens long: exactly what a limit
of B would have left of these samples.

| file | one row per | holds |
| --- | --- | --- |
| budgets.csv | method, benchmark, budget B | share of samples that count within B, beside the baseline's |
| equal_tokens.csv | method, benchmark, baseline's k | pass@k of both for the tokens of the baseline's k samples |

The budgets are quantiles of all lengths at the last step, every method and benchmark weighing the same. At equal totals
the method has k' = floor(k L_baseline / L_method) samples, L: mean length on that benchmark over runs and problems; no
row where k' is 0 or more than were drawn. avg@k needs no such table: its expectation does not depend on k.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tokencredit.analysis.pass_differences import table
from tokencredit.analysis.plan import Plan
from tokencredit.analysis.side_by_side import CONTRAST, HEAD, Found, Pair, contrasts
from tokencredit.evaluation.metrics import Outcomes, ladder
from tokencredit.evaluation.twoway import Redraws

BUDGETS = (*HEAD, "budget", *CONTRAST)
EQUAL_TOKENS = (*HEAD, "baseline_k", "k", "tokens", *CONTRAST)
STEPS = 20  # budgets per model
FINE = 201


def grid(expected: Plan, found: Found) -> dict[str, list[int]]:
    """Model -> budgets in tokens, rising; the last one is the longest answer."""
    out = {}
    for model in expected.models:
        lengths = [
            np.quantile(o.draws.tokens, np.linspace(0, 1, FINE))  # as many numbers of every checkpoint and benchmark
            for (cell, step, _), o in found.items()
            if cell.model == model and step == expected.last
        ]
        if lengths:
            limits = np.quantile(np.concatenate(lengths), np.arange(1, STEPS + 1) / STEPS)
            out[model] = np.unique(np.ceil(limits).astype(np.int64)).tolist()
    return out


def budget_rows(found: Iterable[Pair], budgets: Mapping[str, Sequence[int]], redraws: Redraws) -> list[dict[str, Any]]:
    out = []
    for pair in found:
        limits = budgets[pair.head["model"]]
        ours, theirs = ([np.stack([within(o, limits) for o in s]) for s in sides] for sides in (pair.ours, pair.theirs))
        out += [
            {**pair.head, "budget": limit, **contrast}
            for limit, contrast in zip(limits, contrasts(pair, ours, theirs, redraws), strict=True)
        ]
    return out


def within(o: Outcomes, limits: Sequence[int]) -> np.ndarray:
    """Share of a problem's samples that count within each of the rising limits, [P, K]."""
    d, count = o.draws, len(limits) + 1
    right = d.correct & d.finished
    place = d.problem[right] * count + np.searchsorted(limits, d.tokens[right])  # the first limit that holds it
    fresh = np.bincount(place, minlength=len(o.problems) * count).reshape(-1, count)
    return np.cumsum(fresh, axis=1)[:, :-1] / o.samples[:, None]


def mean_length(runs: Sequence[Outcomes]) -> float:
    """Tokens per answer: over a problem's samples, then problems, then runs."""
    return float(np.mean([(o.tokens / o.samples).mean() for o in runs]))


def equal_token_rows(found: Iterable[Pair], redraws: Redraws) -> list[dict[str, Any]]:
    out = []
    for pair in found:
        ratios = [mean_length(b) / mean_length(a) for a, b in zip(pair.ours, pair.theirs, strict=True)]
        for baseline_k in ladder(pair.samples):
            ks = [int(baseline_k * ratio + 1e-9) for ratio in ratios]
            if not all(1 <= k <= pair.samples for k in ks):
                continue
            ours = [table(side, [k]) for side, k in zip(pair.ours, ks, strict=True)]
            theirs = [table(side, [baseline_k]) for side in pair.theirs]
            alone = len(ks) == 1
            out.append(
                {
                    **pair.head, "baseline_k": baseline_k, "k": ks[0] if alone else None,
                    "tokens": baseline_k * mean_length(pair.theirs[0]) if alone else None,
                    **contrasts(pair, ours, theirs, redraws)[0],
                }
            )  # fmt: skip
    return out

"""What a panel says: drift by token category with bootstrap intervals, transitions p0 -> pk, and margins.

Intervals (95 %) resample responses, since tokens of one response are not independent. Relative drift of a category is
its mean drift over that of all tokens; both are of the same resample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tokencredit.credit import Signals
from tokencredit.credit.margin import weights
from tokencredit.problems.categories import CATEGORIES
from tokencredit.study.methods import MarginCredit
from tokencredit.training.diagnostics import gini

RESAMPLES = 2000
UNCHANGED = 1e-6  # a drift below it is float32 rounding
DRIFT_BINS = tuple(float(x) for x in 10.0 ** np.arange(-6, 0.51, 0.25))  # up to 2 and beyond
PROBABILITY_BINS = 25
MARGIN_BINS = 50
SHARES = (0.05, 0.1, 0.2, 0.5)  # of tokens, for which thresholds are told
LOW, HIGH = 0.2, 0.8  # the thresholds of MCPO's reconstruction


def summarise(table: pa.Table, kinds: Sequence[str], seed: int) -> dict[str, Any]:
    """Results of a panel_tokens table as plain JSON; tokens without any perturbed prompt count for margins only."""
    names = ("drift", "margin", "logprob", "entropy")
    columns = {n: table.column(n).to_numpy(zero_copy_only=False).astype(float) for n in names}
    response = np.unique(table.column("problem_id").to_numpy(zero_copy_only=False).astype(str), return_inverse=True)[1]
    category = np.array([CATEGORIES.index(c) for c in table.column("category").to_pylist()])
    known = np.isfinite(columns["drift"])
    d, logprob = columns["drift"][known], columns["logprob"][known]
    perturbed = np.array(table.column("perturbed").to_pylist(), dtype=float).reshape(len(known), len(kinds))[known]
    redraw = Redraw(response[known], seed)
    return {
        "responses": int(response.max()) + 1,
        "tokens": len(known),
        "correct": _correct(table),
        "drift": {
            "tokens": len(d),
            "responses": redraw.size,
            **redraw.mean(d),
            "exactly_zero": float((d == 0).mean()) if len(d) else None,
            "unchanged": redraw.mean((d < UNCHANGED).astype(float)),
            "kinds": _kinds(redraw, logprob, perturbed, kinds, category[known]),
            "histogram": _counts(d, DRIFT_BINS),
            "bins": list(DRIFT_BINS),
        },
        "categories": by_category(redraw, d, category[known]),
        "transitions": transitions(logprob, perturbed),
        "margin": margins(columns["margin"], columns["entropy"], response),
    }


class Redraw:
    """Means over tokens and their 95 % intervals by redrawing whole responses, the same draws for every mean."""

    def __init__(self, response: np.ndarray, seed: int):
        """response: of each token."""
        self.response = np.unique(response, return_inverse=True)[1]
        self.size = int(self.response.max()) + 1 if len(response) else 0
        self.draws: np.ndarray = np.zeros((RESAMPLES, 0))  # how often each response is drawn: [RESAMPLES, responses]
        if self.size:
            share = np.full(self.size, 1 / self.size)
            self.draws = np.random.default_rng(seed).multinomial(self.size, share, RESAMPLES)

    def per_response(self, values: np.ndarray, cell: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Sums and counts [responses, cells] of the tokens' finite values; cell: column of each token."""
        at, good = self.response * cells + cell, np.isfinite(values)
        each = [np.bincount(at, w, self.size * cells) for w in (np.where(good, values, 0), good.astype(float))]
        return each[0].reshape(self.size, cells), each[1].reshape(self.size, cells)

    def mean(self, values: np.ndarray) -> dict[str, float | None]:
        """mean, low and high over the finite values; None where there is none."""
        total, count = self.per_response(values, np.zeros(len(values), int), 1)
        low, high = limits(_over(self.draws @ total, self.draws @ count)[:, 0])
        return {"mean": _number(_over(total.sum(), count.sum())), "low": low, "high": high}


def _over(a: Any, b: Any) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.divide(a, b)


def limits(spread: np.ndarray) -> tuple[float | None, float | None]:
    """2.5 % and 97.5 % quantiles of the finite values, None without any."""
    held = spread[np.isfinite(spread)]
    return (float(np.quantile(held, 0.025)), float(np.quantile(held, 0.975))) if len(held) else (None, None)


def _correct(table: pa.Table) -> float:
    first = np.array(table.column("position").to_pylist()) == 0
    return float(np.array(table.column("correct").to_pylist())[first].mean())


def _counts(values: np.ndarray, bins: Sequence[float]) -> list[int]:
    """Counts between the bins' edges, what lies below the first edge in front."""
    return [int((values < bins[0]).sum()), *(int(c) for c in np.histogram(values, bins)[0])]


def _kinds(
    redraw: Redraw, logprob: np.ndarray, perturbed: np.ndarray, kinds: Sequence[str], category: np.ndarray
) -> list[dict[str, Any]]:
    """Drift under each kind alone, over the tokens that have it: mean with its interval, and mean by category."""
    out = []
    for k, kind in enumerate(kinds):
        each = 2 * np.tanh(np.abs(logprob - perturbed[:, k]) / 2)
        good = np.isfinite(each)
        sums, counts = (np.bincount(category[good], w, len(CATEGORIES)) for w in (each[good], None))
        by = {c: _number(v) for c, v in zip(CATEGORIES, _over(sums, counts), strict=True)}
        out.append({"kind": kind, "tokens": int(good.sum()), **redraw.mean(each), "categories": by})
    return out


def by_category(redraw: Redraw, d: np.ndarray, category: np.ndarray) -> list[dict[str, Any]]:
    """Share of tokens, mean drift, and its ratio to the overall mean with its interval, for every category."""
    total, count = redraw.per_response(d, category, len(CATEGORIES))

    def relative(weight: np.ndarray) -> np.ndarray:
        t, n = weight @ total, weight @ count
        return _over(_over(t, n), _over(t.sum(-1, keepdims=True), n.sum(-1, keepdims=True)))

    point, spread = relative(np.ones((1, redraw.size)))[0], relative(redraw.draws)
    out = []
    for k, name in enumerate(CATEGORIES):
        low, high = limits(spread[:, k])
        n = count[:, k].sum()
        out.append(
            {
                "category": name,
                "tokens": int(n),
                "share": float(n / max(1.0, count.sum())),
                "mean": _number(_over(total[:, k].sum(), n)),
                "relative": _number(point[k]),
                "low": low,
                "high": high,
            }
        )
    return out


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def transitions(logprob: np.ndarray, perturbed: np.ndarray) -> dict[str, Any]:
    """2-D histogram of (p0, pk) over tokens and kinds; rows p0, columns pk."""
    p0 = np.repeat(np.exp(logprob), perturbed.shape[1] if perturbed.ndim == 2 else 0)
    pk = np.exp(perturbed.ravel())
    good = np.isfinite(pk)
    edges = np.linspace(0, 1, PROBABILITY_BINS + 1)
    counts = np.histogram2d(np.clip(p0[good], 0, 1), np.clip(pk[good], 0, 1), [edges, edges])[0]
    return {"bins": PROBABILITY_BINS, "counts": counts.astype(int).tolist()}


def margins(margin: np.ndarray, entropy: np.ndarray, response: np.ndarray) -> dict[str, Any]:
    """Histogram of the margins, shares beyond MCPO's thresholds, and thresholds that would give other shares.

    thresholds: share -> [the margin that this share of the tokens lies below, the one that it lies above].
    """
    thresholds = {f"{q:g}": [float(np.quantile(margin, q)), float(np.quantile(margin, 1 - q))] for q in SHARES}
    size, longest = int(response.max()) + 1, int(np.bincount(response).max())
    table, mask = torch.ones(size, longest, dtype=torch.float64), torch.zeros(size, longest, dtype=torch.bool)
    order = np.argsort(response, kind="stable")
    place = np.arange(len(response)) - np.searchsorted(response[order], response[order])
    table[response[order], place] = torch.from_numpy(margin[order])
    mask[response[order], place] = True
    s = Signals(mask, torch.arange(size), table, table, table)
    w, hesitant = weights(s, MarginCredit(kind="margin", low=LOW, high=HIGH))
    return {
        "mean": float(margin.mean()),
        "entropy_mean": float(entropy.mean()),
        "below": float((margin <= LOW).mean()),
        "above": float((margin >= HIGH).mean()),
        "low": LOW,
        "high": HIGH,
        "hesitant": float((hesitant[mask] > 0).double().mean()),
        "thresholds": thresholds,
        "gini": float(gini(w, mask).mean()),
        "weight_max": float(w.max()),
        "histogram": [int(c) for c in np.histogram(margin, MARGIN_BINS, (0.0, 1.0))[0]],
    }

"""What a panel says: drift by token category with bootstrap intervals, transitions p0 -> pk, and margins.

Intervals resample responses (tokens of one response are not independent). Relative drift of a category is its mean
drift over that of all tokens; both are of the same resample.
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
LOW, HIGH = 0.2, 0.8  # the thresholds of MCPO's reconstruction


def summarise(table: pa.Table, kinds: Sequence[str], seed: int) -> dict[str, Any]:
    """Results of a panel_tokens table as plain JSON; tokens without any perturbed prompt count for margins only."""
    names = ("drift", "margin", "logprob", "entropy")
    columns = {n: table.column(n).to_numpy(zero_copy_only=False).astype(float) for n in names}
    response = np.unique(table.column("problem_id").to_numpy(zero_copy_only=False).astype(str), return_inverse=True)[1]
    category = np.array([CATEGORIES.index(c) for c in table.column("category").to_pylist()])
    known = np.isfinite(columns["drift"])
    d = columns["drift"][known]
    perturbed = np.array(table.column("perturbed").to_pylist(), dtype=float)[known]
    return {
        "responses": int(response.max()) + 1,
        "tokens": len(known),
        "correct": _correct(table),
        "drift": {
            "tokens": len(d),
            "mean": float(d.mean()) if len(d) else 0.0,
            "exactly_zero": float((d == 0).mean()) if len(d) else 0.0,
            "unchanged": float((d < UNCHANGED).mean()) if len(d) else 0.0,
            "kinds": _kinds(columns["logprob"][known], perturbed, kinds),
            "histogram": _counts(d, DRIFT_BINS),
            "bins": list(DRIFT_BINS),
        },
        "categories": by_category(d, category[known], response[known], seed),
        "transitions": transitions(columns["logprob"][known], perturbed),
        "margin": margins(columns["margin"], columns["entropy"], response),
    }


def _correct(table: pa.Table) -> float:
    first = np.array(table.column("position").to_pylist()) == 0
    return float(np.array(table.column("correct").to_pylist())[first].mean())


def _counts(values: np.ndarray, bins: Sequence[float]) -> list[int]:
    """Counts between the bins' edges, what lies below the first edge in front."""
    return [int((values < bins[0]).sum()), *(int(c) for c in np.histogram(values, bins)[0])]


def _kinds(logprob: np.ndarray, perturbed: np.ndarray, kinds: Sequence[str]) -> dict[str, float | None]:
    """Mean drift under each kind over the tokens that have it."""
    each = 2 * np.tanh(np.abs(logprob[:, None] - perturbed) / 2)
    return {k: float(v) if np.isfinite(v) else None for k, v in zip(kinds, _nanmean(each), strict=True)}


def _nanmean(values: np.ndarray) -> np.ndarray:
    count = np.isfinite(values).sum(0)
    return np.where(count > 0, np.nansum(values, 0) / np.maximum(count, 1), np.nan)


def by_category(d: np.ndarray, category: np.ndarray, response: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """Share of tokens, mean drift, and its ratio to the overall mean with a 95 % interval, for every category."""
    size, kinds = int(response.max()) + 1 if len(response) else 0, len(CATEGORIES)
    cell = response * kinds + category
    total = np.bincount(cell, d, size * kinds).reshape(size, kinds)
    count = np.bincount(cell, minlength=size * kinds).reshape(size, kinds).astype(float)
    draws = (
        np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), RESAMPLES) if size else np.zeros((1, 0))
    )

    def ratio(weight: np.ndarray) -> np.ndarray:
        t, n = weight @ total, weight @ count
        with np.errstate(invalid="ignore", divide="ignore"):
            return (t / n) / (t.sum(-1, keepdims=True) / n.sum(-1, keepdims=True))

    point, spread = ratio(np.ones((1, size)))[0], ratio(draws)
    out = []
    for k, name in enumerate(CATEGORIES):
        held = spread[np.isfinite(spread[:, k]), k]
        low, high = np.quantile(held, [0.025, 0.975]) if len(held) else (np.nan, np.nan)
        n = count[:, k].sum()
        out.append(
            {
                "category": name,
                "tokens": int(n),
                "share": float(n / max(1.0, count.sum())),
                "mean": _number(total[:, k].sum() / n if n else np.nan),
                "relative": _number(point[k]),
                "low": _number(low),
                "high": _number(high),
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
    """Histogram of the margins, shares beyond MCPO's thresholds, and thresholds that would give other shares."""
    quantiles = {f"{q:.2f}": float(np.quantile(margin, q)) for q in (0.05, 0.1, 0.2, 0.5, 0.8)}
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
        "quantiles": quantiles,
        "gini": float(gini(w, mask).mean()),
        "weight_max": float(w.max()),
        "histogram": [int(c) for c in np.histogram(margin, MARGIN_BINS, (0.0, 1.0))[0]],
    }

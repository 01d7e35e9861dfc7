"""Score against length: over training runs, and over problems. Associations, not causes.

    length_models.csv   one row per model, benchmark, fit and term; length in doublings (log2 of tokens)

fit `runs`: one row per run (method x seed) at the last step, headline accuracy on log2 mean length.
    slope                accuracy per doubling among runs of the same method: accuracy ~ method + length
    slope_all            the same with no regard to the method: accuracy ~ length
    difference           method minus baseline: accuracy ~ method
    at_equal_length      method minus baseline in accuracy ~ method + length
fit `problems`: one row per problem (rows of one question averaged), means over the shared seeds; d: method minus
baseline.
    difference           mean of d accuracy
    slope                d accuracy per doubling of the problem's answers: d accuracy ~ 1 + d length
    at_equal_length      the line's value at d length = 0
    through_length       slope times mean d length; adds up with at_equal_length to the difference

Intervals are Student's; over problems with HC3 standard errors, given the lengths. A longer answer may be the way to a
right one, or a sign that the problem went wrong: both stand in the slope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokencredit.analysis.plan import Plan
from tokencredit.analysis.side_by_side import HEAD, Found, Pair, groups, pooled
from tokencredit.evaluation.regression import least_squares
from tokencredit.study.grid import Cell

COLUMNS = (*HEAD, "fit", "term", "estimate", "low", "high", "n")

Row = dict[str, Any]


def over_runs(expected: Plan, found: Found) -> list[Row]:
    """The `runs` fits of every model and group of benchmarks."""
    out: list[Row] = []
    for model in expected.models:
        for group, names in groups(expected).items():
            runs = list(_runs(expected, found, model, names))
            head = {"study": expected.study, "model": model, "benchmark": group, "step": expected.last, "fit": "runs"}
            out += [head | row for row in run_fits(expected, runs)]
    return out


def _runs(expected: Plan, found: Found, model: str, names: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """(method, accuracy, log2 of the mean length) of every run that was asked everything."""
    for method in sorted(expected.methods):
        for seed in sorted(expected.seeds):
            asked = [found.get((Cell(model, method, seed), expected.last, name)) for name in names]
            have = [o for o in asked if o is not None]
            if len(have) == len(names):
                length = np.mean([(o.tokens / o.samples).mean() for o in have])
                yield method, float(np.mean([o.rate.mean() for o in have])), float(np.log2(length))


def run_fits(expected: Plan, runs: Sequence[tuple[str, float, float]]) -> Iterator[Row]:
    """The rows of a fit over (method, accuracy, log2 length) of every run."""
    if not runs:
        return
    present = list(dict.fromkeys(method for method, _, _ in runs))
    y = np.asarray([accuracy for _, accuracy, _ in runs])
    length = np.asarray([v for _, _, v in runs])[:, None]
    methods = np.asarray([[float(m == p) for p in present] for m, _, _ in runs])
    n = len(runs)
    shared = {"method": "", "baseline": expected.baseline, "n": n}
    for term, x in (("slope", np.hstack([methods, length])), ("slope_all", np.hstack([np.ones((n, 1)), length]))):
        yield {**shared, "term": term, **_estimate(x, y, {x.shape[1] - 1: 1.0})}
    if expected.baseline not in present:
        return
    base = present.index(expected.baseline)
    for i, method in enumerate(present):
        if i == base:
            continue
        for term, x in (("difference", methods), ("at_equal_length", np.hstack([methods, length]))):
            yield {**shared, "method": method, "term": term, **_estimate(x, y, {i: 1.0, base: -1.0})}


def _estimate(x: np.ndarray, y: np.ndarray, weights: Mapping[int, float], robust: bool = False) -> Row:
    fit = least_squares(x, y, robust)
    if fit is None:
        return dict.fromkeys(("estimate", "low", "high"))
    which = np.zeros(x.shape[1])
    which[list(weights)] = list(weights.values())
    return dict(zip(("estimate", "low", "high"), fit.interval(which), strict=True))


def over_problems(found: Iterable[Pair]) -> list[Row]:
    """The `problems` fits; a pair of several benchmarks takes all their problems together (`pooled`)."""
    out = []
    for pair in found:
        accuracy, length = (
            _by_question(pair, np.concatenate([f(a) - f(b) for a, b in zip(pair.ours, pair.theirs, strict=True)]))
            for f in (_accuracy, _log_length)
        )
        one, middle = np.ones_like(length), float(length.mean())
        x = np.stack([one, length], axis=1)
        terms = {
            "difference": _estimate(one[:, None], accuracy, {0: 1.0}, robust=True),
            "slope": _estimate(x, accuracy, {1: 1.0}, robust=True),
            "at_equal_length": _estimate(x, accuracy, {0: 1.0}, robust=True),
            "through_length": _estimate(x, accuracy, {1: middle}, robust=True),
        }
        head = {**pair.head, "benchmark": pooled(pair.group, pair.benchmarks), "fit": "problems", "n": len(accuracy)}
        out += [{**head, "term": term, **values} for term, values in terms.items()]
    return out


def _by_question(pair: Pair, values: np.ndarray) -> np.ndarray:
    """Means of rows of one question."""
    labels = [label for each in pair.questions.values() for label in each]
    place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    index = np.asarray([place[label] for label in labels])
    return np.bincount(index, weights=values) / np.bincount(index)


def _accuracy(runs: Sequence[Any]) -> np.ndarray:
    return np.mean([o.rate for o in runs], axis=0)


def _log_length(runs: Sequence[Any]) -> np.ndarray:
    return np.log2(np.mean([o.tokens / o.samples for o in runs], axis=0))

"""Gain over the baseline by how often the baseline solves the problem: 0, (0, .25], (.25, .75], (.75, 1), 1.

    strata.csv   one row per method, benchmark (pooled: all problems together), way of sorting, and stratum

Sorting problems by the very samples that the baseline's score is taken from makes a gain where there is none: a problem
without a right sample was also unlucky, and cannot score less. So three ways stand beside each other:

    same   the stratum and the score are of the same samples: regression to the mean in full
    half   the stratum is of one half of the run's samples (by the parity of their number), the score of the other, and
           the other way about: free of the luck of sampling, not of the luck of the training run
    run    the stratum is of another seed's run of the baseline, the score of this one's: free of both

A row of the mean is one (seed, problem), once per half or per other seed; rows of one question are one cluster. Strata
of halves are of fewer samples, so that 0 means less there. contribution: share of rows times difference; over the
strata of one way of sorting these add up to the gain over all its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokencredit.analysis.side_by_side import HEAD, Pair, pooled
from tokencredit.evaluation.compare import over_problems
from tokencredit.evaluation.metrics import Outcomes

WAYS = ("same", "half", "run")
STRATA = ("0", "(0, .25]", "(.25, .75]", "(.75, 1)", "1")
COLUMNS = (
    *HEAD, "sorted_by", "stratum", "rows", "problems", "share",
    "value", "baseline_value", "difference", "low", "high", "contribution", "seeds",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """One view of a pair, row by row: the rate that sorts, both scores, and the question."""

    sorts: np.ndarray
    ours: np.ndarray
    theirs: np.ndarray
    question: np.ndarray


def stratum(rate: np.ndarray) -> np.ndarray:
    """Place in STRATA of every share of right samples."""
    return np.select([rate == 0, rate <= 0.25, rate <= 0.75, rate < 1], [0, 1, 2, 3], default=4)


def rows(found: Iterable[Pair]) -> list[dict[str, Any]]:
    """found: pairs; those of several benchmarks become the rows of all their problems."""
    out = []
    for pair in found:
        head = {**pair.head, "benchmark": pooled(pair.group, pair.benchmarks)}
        for way in WAYS:
            views = list(_views(pair, way))
            if views:
                out += [{**head, "sorted_by": way, "seeds": len(pair.seeds), **row} for row in _strata(views)]
    return out


def _views(pair: Pair, way: str) -> Iterator[Rows]:
    for ours, theirs, labels in zip(pair.ours, pair.theirs, pair.questions.values(), strict=True):
        question = np.asarray(labels, dtype=object)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if way == "same":
                yield Rows(b.rate, a.rate, b.rate, question)
            elif way == "run":
                yield from (Rows(c.rate, a.rate, b.rate, question) for j, c in enumerate(theirs) if j != i)
            elif b.per_problem > 1:
                even, odd = halves(b)
                yield Rows(even, a.rate, odd, question)
                yield Rows(odd, a.rate, even, question)


def halves(o: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """Share of right samples [P] among the first, third, ... and among the second, fourth, ... of each problem."""
    d = o.draws
    first = np.concatenate([[0], np.cumsum(o.samples)[:-1]])
    odd = (np.arange(len(d.problem)) - first[d.problem]) % 2 == 1

    def rate(which: np.ndarray) -> np.ndarray:
        right = np.bincount(d.problem[which], weights=d.correct[which], minlength=len(o.problems))
        return right / np.bincount(d.problem[which], minlength=len(o.problems))

    return rate(~odd), rate(odd)


def _strata(views: Sequence[Rows]) -> Iterator[dict[str, Any]]:
    sorts, ours, theirs, question = (
        np.concatenate([getattr(v, name) for v in views]) for name in ("sorts", "ours", "theirs", "question")
    )
    place = stratum(sorts)
    for i, name in enumerate(STRATA):
        inside = place == i
        count = int(inside.sum())
        row: dict[str, Any] = dict.fromkeys(COLUMNS[len(HEAD) + 1 : -1])
        row |= {"stratum": name, "rows": count, "problems": 0, "share": count / len(place)}
        if count:
            a, b = ours[inside], theirs[inside]
            r = over_problems(a, b, question[inside].tolist())
            row |= {
                "problems": r.n, "value": float(a.mean()), "baseline_value": float(b.mean()),
                "difference": r.difference, "low": r.low, "high": r.high,
                "contribution": r.difference * count / len(place),
            }  # fmt: skip
        yield row

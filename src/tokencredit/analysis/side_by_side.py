"""A method and the baseline at the last step, over the seeds that both have: what the comparisons below start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tokencredit.analysis.plan import MACRO, Plan
from tokencredit.evaluation.compare import over_seeds
from tokencredit.evaluation.metrics import Outcomes
from tokencredit.evaluation.twoway import Redraws, spread
from tokencredit.study.grid import Cell

Found = Mapping[tuple[Cell, int, str], Outcomes]
Cells = Sequence[np.ndarray]  # per benchmark [S, P_b, K]: K numbers for every run and problem

POOLED = "pooled"
HEAD = ("study", "model", "method", "baseline", "benchmark", "step")
CONTRAST = ("value", "baseline_value", "difference", "low", "high", "boot_low", "boot_high", "seeds")


@dataclass(frozen=True)
class Pair:
    """ours, theirs: outcomes of the method and the baseline, [benchmark][seed]; group: the benchmark, or their mean."""

    head: Mapping[str, Any]
    group: str
    benchmarks: tuple[str, ...]
    seeds: tuple[int, ...]
    ours: tuple[tuple[Outcomes, ...], ...]
    theirs: tuple[tuple[Outcomes, ...], ...]
    origins: Mapping[str, str] = field(default_factory=dict)  # problem -> its question, where that is another one

    @property
    def questions(self) -> dict[str, tuple[str, ...]]:
        """Per benchmark: the question that each problem is a row of."""
        return {
            name: tuple(self.origins.get(p, p) for p in o[0].problems)
            for name, o in zip(self.benchmarks, self.ours, strict=True)
        }

    @property
    def samples(self) -> int:
        """The largest k that every problem of either side can answer for."""
        return min(o.per_problem for side in (self.ours, self.theirs) for each in side for o in each)


def pairs(expected: Plan, found: Found, origins: Mapping[str, str]) -> Iterator[Pair]:
    """Every model, challenger and group of benchmarks that have a seed in common with the baseline, in order.

    origins: problem -> the question that it is a row of (questions.py).
    """
    for model in expected.models:
        for method in expected.challengers:
            for group, names in groups(expected).items():
                if (pair := _pair(expected, found, model, method, group, names)) is not None:
                    yield replace(pair, origins=origins)


def groups(expected: Plan) -> dict[str, tuple[str, ...]]:
    """Each benchmark alone, and the study's means over them: name -> benchmarks, in the order that draws follow."""
    names = tuple(sorted(b.name for b in expected.benchmarks))
    alone: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    means = {name: tuple(sorted(of)) for name, of in expected.means.items()}
    return {**alone, **means} if len(names) > 1 else alone


def pooled(group: str, benchmarks: Sequence[str]) -> str:
    """Name of a group whose problems are taken together instead of benchmark by benchmark."""
    return group if len(benchmarks) == 1 else POOLED if group == MACRO else f"{POOLED} {group}"


def _pair(expected: Plan, found: Found, model: str, method: str, group: str, names: tuple[str, ...]) -> Pair | None:
    def side(of: str, seed: int) -> list[Outcomes | None]:
        return [found.get((Cell(model, of, seed), expected.last, name)) for name in names]

    both = {s: (side(method, s), side(expected.baseline, s)) for s in sorted(expected.seeds)}
    seeds = tuple(s for s, (a, b) in both.items() if all(a) and all(b))
    if not seeds:
        return None
    head = {
        "study": expected.study, "model": model, "method": method, "baseline": expected.baseline,
        "benchmark": group, "step": expected.last,
    }  # fmt: skip
    ours, theirs = (
        tuple(tuple(o for s in seeds if (o := both[s][i][b]) is not None) for b in range(len(names))) for i in (0, 1)
    )
    return Pair(head, group, names, seeds, ours, theirs)


def contrasts(pair: Pair, ours: Cells, theirs: Cells, redraws: Redraws) -> list[dict[str, Any]]:
    """The CONTRAST columns of each of the K numbers: means over benchmarks of means over runs and problems.

    low, high: Student's interval over the seeds; boot_low, boot_high: redraws runs and problems.
    """
    a, b = (np.mean([x.mean(axis=1) for x in side], axis=0) for side in (ours, theirs))  # [S, K]
    draws = redraws.of(pair.seeds, pair.questions).means([x - y for x, y in zip(ours, theirs, strict=True)])
    rows = []
    for k in range(a.shape[1]):
        r = over_seeds(dict(zip(pair.seeds, a[:, k], strict=True)), dict(zip(pair.seeds, b[:, k], strict=True)))
        assert r is not None  # a pair has a seed
        boot = spread(r.difference, draws[:, k], r.n)
        rows.append(
            {
                "value": float(a[:, k].mean()), "baseline_value": float(b[:, k].mean()),
                "difference": r.difference, "low": r.low, "high": r.high,
                "boot_low": boot.low, "boot_high": boot.high, "seeds": r.n,
            }
        )  # fmt: skip
    return rows

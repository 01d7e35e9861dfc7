"""When each method first stands where the baseline ends: optimisation steps to the baseline's final accuracy.

Among the evaluated checkpoints, on means over seeds; between two of them the line is straight. A method that has not
got there by its last step has no number.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokencredit.analysis.plan import BASE
from tokencredit.evaluation.metrics import mean
from tokencredit.reporting.results import Results


@dataclass(frozen=True)
class Reach:
    """step: interpolated, None where the goal is not reached; goal: the baseline's final accuracy, a share."""

    method: str
    benchmark: str
    goal: float
    step: float | None


def points(results: Results, model: str, method: str, benchmark: str) -> list[tuple[int, float]]:
    """(step, mean accuracy over seeds) of every evaluated checkpoint, the untrained model first."""
    start = results.values(model, BASE, 0, benchmark)
    found = [(0, mean(list(start.values())))] if start else []
    for step in results.plan.steps:
        values = results.values(model, method, step, benchmark)
        if values:
            found.append((step, mean(list(values.values()))))
    return found


def first(curve: list[tuple[int, float]], goal: float) -> float | None:
    """Where a curve first reaches `goal`.

    >>> first([(0, 0.1), (10, 0.3), (20, 0.2), (30, 0.5)], 0.4)
    26.666666666666668
    >>> first([(0, 0.1), (10, 0.3)], 0.4) is None
    True
    """
    for (a, low), (b, high) in zip([(0, -1.0), *curve], curve, strict=False):
        if high >= goal:
            return float(b) if low < 0 else a + (b - a) * (goal - low) / (high - low)
    return None


def reaches(results: Results, model: str) -> list[Reach]:
    """Every method on every benchmark (or average) that was evaluated along the way, in the page's order."""
    p, out = results.plan, []
    along = {b.name for b in p.benchmarks if b.every_checkpoint}
    along |= {name for name, of in p.means.items() if set(of) <= along}
    for benchmark in results.shown_benchmarks():
        base = points(results, model, p.baseline, benchmark)
        if benchmark not in along or len(p.steps) < 2 or not base or base[-1][0] != p.last:
            continue
        goal = base[-1][1]
        for method in p.methods:
            curve = points(results, model, method, benchmark)
            if len(curve) > 1:
                out.append(Reach(method, benchmark, goal, first(curve, goal)))
    return out

"""intervals.csv: every accuracy at the last step with its 95 % interval, also by the parts of a pooled set.

One row per model, method, benchmark (or mean over benchmarks) and part: part "" is the whole set, "aime_2024" the
problems that came from the set of that name. The interval is Student's over seeds where a method has two or more, else
over problems (unit): the untrained model, and a method that was trained once. A question's rows (orders of its options,
variants of a problem) are one cluster. A mean over benchmarks with one seed adds up their independent errors. Ends
beyond 0 and 1 are cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokencredit.analysis.plan import BASE, Plan, layout
from tokencredit.evaluation.compare import Comparison, over_problems, over_seeds, over_strata
from tokencredit.evaluation.metrics import Outcomes, macro_mean
from tokencredit.study.grid import Cell
from tokencredit.study.tables import read_table

COLUMNS = ("study", "model", "method", "benchmark", "part", "step", "value", "low", "high", "unit", "seeds", "problems")
Found = Mapping[tuple[Cell, int, str], Outcomes]
PART = "set:"  # tag that names the set a made problem comes from


def parts(expected: Plan, root: Path | str) -> dict[str, dict[str, str]]:
    """benchmark -> problem_id -> part, of the benchmarks whose problems come from two sets or more."""
    out: dict[str, dict[str, str]] = {}
    for benchmark in expected.benchmarks:
        path = Path(layout(root).benchmark(benchmark.name))
        if not path.exists():
            continue
        table = read_table("problems", path, ("problem_id", "tags"))
        of = {
            name: tag.removeprefix(PART)
            for name, tags in zip(table["problem_id"].to_pylist(), table["tags"].to_pylist(), strict=True)
            for tag in tags
            if tag.startswith(PART)
        }
        if len(set(of.values())) > 1:
            out[benchmark.name] = of
    return out


def rows(
    expected: Plan, found: Found, origins: Mapping[str, str], of: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """origins: problem -> its question (questions.py); of: from `parts`."""
    for model in expected.models:
        for method in (BASE, *expected.methods):
            step, seeds = (0, (0,)) if method == BASE else (expected.last, expected.seeds)
            by_name: dict[str, list[Outcomes]] = {}
            for b in expected.benchmarks:
                each = [found[key] for s in seeds if (key := (Cell(model, method, s), step, b.name)) in found]
                if each:
                    by_name[b.name] = each
            head = {"study": expected.study, "model": model, "method": method, "step": step}
            for name, each in by_name.items():
                for part, mask in _masks(each[0].problems, of.get(name, {})):
                    clusters = [origins.get(p, p) for p, m in zip(each[0].problems, mask, strict=True) if m]
                    yield {**head, "benchmark": name, "part": part, **_level([r.rate[mask] for r in each], clusters)}
            for name, members in expected.means.items():
                if all(len(by_name.get(m, ())) == len(seeds) for m in members):
                    yield {**head, "benchmark": name, "part": "", **_mean([by_name[m] for m in members], origins)}


def _masks(problems: Sequence[str], of: Mapping[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    """(part, which problems), the whole first."""
    yield "", np.ones(len(problems), dtype=bool)
    for part in dict.fromkeys(sorted(set(of.values()))):
        yield part, np.array([of.get(p) == part for p in problems])


def _level(rates: Sequence[np.ndarray], clusters: Sequence[str]) -> dict[str, Any]:
    """rates: per seed, each problem's share right."""
    values = {i: float(np.mean(r)) for i, r in enumerate(rates)}
    if len(values) > 1:
        interval = over_seeds(values, dict.fromkeys(values, 0.0))
    else:
        interval = over_problems(rates[0], np.zeros(len(rates[0])), clusters)
    return _told(macro_mean(list(values.values())), interval, len(values), len(rates[0]))


def _mean(each: Sequence[Sequence[Outcomes]], origins: Mapping[str, str]) -> dict[str, Any]:
    """each: per benchmark, its outcomes per seed."""
    count = len(each[0])
    values = {s: macro_mean([float(np.mean(runs[s].rate)) for runs in each]) for s in range(count)}
    if count > 1:
        interval = over_seeds(values, dict.fromkeys(values, 0.0))
    else:
        interval = over_strata(
            [
                over_problems(r.rate, np.zeros(len(r.rate)), [origins.get(p, p) for p in r.problems])
                for (r,) in each  # one seed
            ]
        )
    return _told(macro_mean(list(values.values())), interval, count, sum(len(runs[0].problems) for runs in each))


def _told(value: float, interval: Comparison | None, seeds: int, problems: int) -> dict[str, Any]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    if low is not None and high is not None:  # a share: Student's interval knows of no ends
        low, high = max(low, 0.0), min(high, 1.0)
    unit = "seeds" if seeds > 1 else "problems"
    return {"value": value, "low": low, "high": high, "unit": unit, "seeds": seeds, "problems": problems}

"""The aggregate files of a study, read once, as the tables and figures ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import number, read_csv
from tokencredit.analysis.plan import BASE, Plan, plan
from tokencredit.evaluation.compare import Comparison

Row = dict[str, str]


@dataclass(frozen=True)
class Results:
    """summary.csv, paired.csv and curves.csv, indexed."""

    plan: Plan
    scores: Mapping[tuple[str, str, int, str, str, int], Mapping[int, float]]  # model .. metric, k -> seed -> value
    pairs: Mapping[tuple[str, str, int, str, str, int], Row]
    curves: Mapping[tuple[str, str, str], list[Row]]  # model, method, metric -> rows by step
    missing: list[Row]  # summary rows without a value
    timing: list[Row] = field(default_factory=list)  # timing.csv: wall clock

    def by_k(self, model: str, method: str, step: int, benchmark: str, metric: str) -> dict[int, Mapping[int, float]]:
        """k -> seed -> value, k ascending."""
        keys = sorted(k for k in self.scores if k[:5] == (model, method, step, benchmark, metric))
        return {k[5]: self.scores[k] for k in keys}

    def values(self, model: str, method: str, step: int, benchmark: str, metric: str = "avg") -> Mapping[int, float]:
        """seed -> value; empty where nothing was evaluated. For a metric with several k: the largest."""
        found = self.by_k(model, method, step, benchmark, metric)
        return found[max(found)] if found else {}

    def pair(self, model: str, method: str, benchmark: str, step: int | None = None) -> Comparison | None:
        """Method minus baseline in avg at `step` (default: the last); None where they share no seed."""
        step = self.plan.last if step is None else step
        rows = [r for k, r in self.pairs.items() if k[:5] == (model, method, step, benchmark, "avg")]
        return comparison(rows[-1]) if rows else None

    def holm(self, model: str, method: str, benchmark: str) -> float | None:
        """Holm-adjusted p of `pair` at the last step."""
        key = (model, method, self.plan.last, benchmark, "avg")
        return next((number(r["p_holm"]) for k, r in self.pairs.items() if k[:5] == key), None)

    def shown_methods(self) -> list[str]:
        """The untrained model first, then the grid's order."""
        return [BASE, *self.plan.methods]

    def shown_benchmarks(self) -> list[str]:
        names = [b.name for b in self.plan.benchmarks]
        return [*names, *self.plan.means] if len(names) > 1 else names

    @property
    def headline(self) -> str:
        """What the answer is about: the first average, the macro mean, or the only benchmark."""
        names = self.shown_benchmarks()
        return next((n for n in names if n in self.plan.means), names[0])


def load(spec: Mapping[str, Any], analysis: Path | str) -> Results:
    """Read the aggregate files under `analysis`; `spec` is the study's `aggregate` spec."""
    analysis, missing = Path(analysis), []
    scores: dict[tuple[str, str, int, str, str, int], dict[int, float]] = {}
    for r in read_csv(analysis / "summary.csv"):
        value = number(r["value"])
        if value is None:
            missing.append(r)
            continue
        key = (r["model"], r["method"], int(r["step"]), r["benchmark"], r["metric"], int(r["k"]))
        scores.setdefault(key, {})[int(r["seed"])] = value
    pairs = {
        (r["model"], r["method"], int(r["step"]), r["benchmark"], r["metric"], int(r["k"])): r
        for r in read_csv(analysis / "paired.csv")
    }
    curves: dict[tuple[str, str, str], list[Row]] = {}
    for r in read_csv(analysis / "curves.csv"):
        curves.setdefault((r["model"], r["method"], r["metric"]), []).append(r)
    return Results(plan(spec), scores, pairs, curves, missing, read_csv(analysis / "timing.csv"))


def comparison(row: Row) -> Comparison | None:
    """The comparison that a row of paired.csv holds."""
    difference = number(row["difference"])
    if difference is None:
        return None
    values = dict(item.split(":") for item in row["seed_values"].split())
    se, t, p, low, high, flip = (number(row[c]) for c in ("se", "t", "p", "low", "high", "sign_flip_p"))
    return Comparison(
        difference=difference,
        n=int(row["seeds"]),
        unit="seeds",
        se=se,
        t=t,
        p=p,
        low=low,
        high=high,
        sign_flip_p=flip,
        values={int(seed): float(value) for seed, value in values.items()},
    )

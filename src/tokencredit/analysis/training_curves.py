"""Training metrics over seeds, and where the time went."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import write_csv
from tokencredit.analysis.plan import Plan, layout
from tokencredit.evaluation.metrics import mean
from tokencredit.study.errors import UserError
from tokencredit.study.grid import Cell
from tokencredit.study.tables import read_table

CURVES = (
    "study", "model", "method", "step", "metric", "mean", "sd", "low", "high", "seeds", "seeds_expected",
)  # fmt: skip
TIMING = ("study", "model", "method", "seed", "stage", "phase", "value", "unit")
# phases of the timings table that are no durations: unit, and how a run's steps become one number
GAUGES: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "peak_memory": ("MiB", max),
    "tokens_per_second": ("tokens/s", mean),
}


def write_curves(expected: Plan, root: Path | str, path: Path) -> Path:
    """curves.csv: mean, sample sd, lowest and highest over the seeds that have the value; their number."""
    values: dict[tuple[str, str, int, str], dict[int, float]] = {}
    for cell in expected.runs():
        for step, metric, value in _columns("metrics", cell, root, "step", "metric", "value"):
            if value is not None and math.isfinite(value):
                values.setdefault((cell.model, cell.method, step, metric), {})[cell.seed] = value
    rows = []
    for (model, method, step, metric), by_seed in values.items():
        each = [by_seed[s] for s in sorted(by_seed)]
        rows.append(
            {
                "study": expected.study, "model": model, "method": method, "step": step, "metric": metric,
                "mean": mean(each), "sd": spread(each), "low": min(each), "high": max(each),
                "seeds": len(each), "seeds_expected": len(expected.seeds),
            }
        )  # fmt: skip
    return write_csv(path, CURVES, rows, keys=5)


def spread(values: Iterable[float]) -> float | None:
    """Sample standard deviation (ddof 1); None for fewer than two values."""
    values = list(values)
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def write_timing(expected: Plan, root: Path | str, path: Path) -> Path:
    """timing.csv: seconds per cell, stage and phase (wall clock: differs between any two runs), and two gauges.

    Training from its timings table; the other stages from `seconds` in their records (a number, or phase -> number),
    an evaluation's added up over steps and benchmarks. Stages that serve every cell have no model, method or seed.
    """
    place, shared = layout(root), Cell("", "", -1)
    records = [
        (shared, "problems", place.problems),
        *((shared, "problems", place.benchmark(b.name)) for b in expected.benchmarks),
        (shared, "semifactuals", place.semifactuals),
        *((Cell(model, "", -1), "base", place.base(model)) for model in expected.models),
        *(
            (cell, "evaluate", place.samples(cell, step, b.name))
            for cell, step in expected.checkpoints()
            for b in expected.benchmarks_at(cell.method, step)
        ),
    ]
    spent: dict[tuple[Cell, str, str], list[float]] = {}
    for cell, stage, file in records:
        for phase, value in _seconds(Path(file).with_suffix(".json")).items():
            spent.setdefault((cell, stage, phase), []).append(value)
    for cell in expected.runs():
        for phase, value in _columns("timings", cell, root, "phase", "value"):
            if value is not None and math.isfinite(value):
                spent.setdefault((cell, "train", phase), []).append(value)
    rows = []
    for (cell, stage, phase), values in spent.items():
        unit, reduce = GAUGES.get(phase, ("s", math.fsum))
        head = {"study": expected.study, **vars(cell), "stage": stage, "phase": phase}
        rows.append({**head, "value": reduce(values), "unit": unit})
    return write_csv(path, TIMING, rows, keys=6)


def _columns(table: str, cell: Cell, root: Path | str, *names: str) -> Iterator[tuple[Any, ...]]:
    """Rows of a run's table, these columns only; none where it does not exist."""
    path = Path(layout(root).train(cell, f"{table}.parquet"))
    if path.exists():
        columns = read_table(table, path, names)
        yield from zip(*(columns[name].to_pylist() for name in names), strict=True)


def read_record(path: Path | str) -> dict[str, Any] | None:
    """A stage's JSON record; None where it does not exist, UserError where it is no JSON object."""
    path = Path(path)
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{path}: not a JSON record; delete it and run snakemake again")
    return record


def _seconds(path: Path) -> dict[str, float]:
    value = (read_record(path) or {}).get("seconds")
    phases = value if isinstance(value, dict) else {"all": value}
    return {k: float(v) for k, v in phases.items() if isinstance(v, int | float) and math.isfinite(v)}

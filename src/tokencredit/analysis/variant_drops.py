"""What a variant costs: accuracy on it minus accuracy on the same problems as they stand, or on its control.

    drop = mean over (seed, problem) of  avg(variant) - avg(reference)

avg: share of right samples. Pairs are found by the tag `base:PROBLEM_ID` of the variant's row: the reference is that
problem in another benchmark of the study, or the control made from it. The interval treats the problem as the unit
(evaluation.compare.over_problems): seeds, and several variants of one problem, are one cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokencredit.analysis.plan import BASE, Plan, layout
from tokencredit.evaluation.compare import Comparison, over_problems
from tokencredit.study.grid import Cell
from tokencredit.study.tables import read_table

CONTROLS = {"noop": "noop_control"}
UNTOUCHED = "untouched"


@dataclass(frozen=True)
class Pairing:
    """Problems of a kind of variant and what they are compared with.

    pairs: (benchmark, problem, benchmark and problem compared with, original problem)
    """

    kind: str
    against: str  # UNTOUCHED, or the control's kind
    pairs: tuple[tuple[str, str, str, str, str], ...]


@dataclass(frozen=True)
class Drop:
    """One policy on one pairing; accuracies are means over the paired (seed, problem) rows."""

    model: str
    method: str
    kind: str
    against: str
    variant: float
    reference: float
    comparison: Comparison
    seeds: int


def pairings(root: Path | str, benchmarks: tuple[str, ...]) -> list[Pairing]:
    """Every kind of variant among the benchmarks' tables that has its originals or its control beside it."""
    place = layout(root)
    originals: dict[str, str] = {}  # problem_id -> benchmark
    made: dict[str, list[tuple[str, str, str]]] = {}  # kind -> (benchmark, problem_id, problem_id of the original)
    for name in benchmarks:
        path = Path(place.benchmark(name))
        for row in read_table("problems", path, ("problem_id", "tags")).to_pylist() if path.exists() else ():
            tags = dict(tag.partition(":")[::2] for tag in row["tags"])
            if "variant" in tags and "base" in tags:
                made.setdefault(tags["variant"], []).append((name, row["problem_id"], tags["base"]))
            else:
                originals.setdefault(row["problem_id"], name)
    out = []
    for kind, rows in made.items():
        beside = {UNTOUCHED: {base: (name, base) for base, name in originals.items()}}
        if (control := CONTROLS.get(kind)) in made:
            beside[control] = {base: (name, pid) for name, pid, base in made[control]}
        for against, known in beside.items():
            pairs = tuple((name, pid, *known[base], base) for name, pid, base in rows if base in known)
            out += [Pairing(kind, against, pairs)] if pairs else []
    return out


def drops(root: Path | str, plan: Plan) -> Iterator[Drop]:
    """Every policy (the base model, then the methods at the last step) on every pairing that it was asked."""
    found = pairings(root, tuple(b.name for b in plan.benchmarks))
    for model in plan.models if found else ():
        for method in (BASE, *plan.methods):
            cells = [Cell(model, BASE, 0)] if method == BASE else [Cell(model, method, s) for s in plan.seeds]
            asked = [_accuracies(root, cell, 0 if method == BASE else plan.last, plan) for cell in cells]
            for pairing in found:
                if (drop := _drop(model, method, pairing, asked)) is not None:
                    yield drop


def _accuracies(root: Path | str, cell: Cell, step: int, plan: Plan) -> dict[tuple[str, str], float]:
    """(benchmark, problem_id) -> share of right samples, of the benchmarks that were asked."""
    out: dict[tuple[str, str], float] = {}
    for benchmark in plan.benchmarks:
        path = Path(layout(root).samples(cell, step, benchmark.name))
        if not path.exists():
            continue
        right: dict[str, list[bool]] = {}
        for row in read_table("samples", path, ("problem_id", "correct")).to_pylist():
            right.setdefault(row["problem_id"], []).append(row["correct"])
        out |= {(benchmark.name, pid): sum(v) / len(v) for pid, v in right.items()}
    return out


def _drop(model: str, method: str, pairing: Pairing, asked: Sequence[Mapping[tuple[str, str], float]]) -> Drop | None:
    rows = [
        (scores[name, pid], scores[other, base_pid], base, seed)
        for seed, scores in enumerate(asked)
        for name, pid, other, base_pid, base in pairing.pairs
        if (name, pid) in scores and (other, base_pid) in scores
    ]
    if not rows:
        return None
    a, b = (np.array([row[i] for row in rows]) for i in (0, 1))
    comparison = over_problems(a, b, [row[2] for row in rows])
    return Drop(
        model, method, pairing.kind, pairing.against, float(a.mean()), float(b.mean()), comparison,
        len({row[3] for row in rows}),
    )  # fmt: skip

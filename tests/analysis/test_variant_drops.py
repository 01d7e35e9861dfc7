"""Variants are paired with their own problems and controls, and the drop is that of the pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokencredit.analysis.plan import BASE, Benchmark, Plan, layout
from tokencredit.analysis.variant_drops import drops
from tokencredit.evaluation.compare import over_problems
from tokencredit.problems.text import problem_id
from tokencredit.problems.variants import made
from tokencredit.reporting.variants import section
from tokencredit.study.grid import Cell
from tokencredit.study.tables import SCHEMAS, write_table

TEXTS = [f"Ann has ${n}$ red marbles and buys $5$ more. Find the number of her marbles." for n in (12, 14, 16, 18)]
ORIGINALS = [
    {
        "problem_id": problem_id(t), "source": "s#0", "problem": t, "answer": "1", "answer_kind": "integer", "choices": [],
        "tags": [],
    }
    for t in TEXTS
]  # fmt: skip
PLAN = Plan(
    "s",
    ("m",),
    {"grpo": "GRPO"},
    (0, 1),
    tuple(Benchmark(n, n, 4, True) for n in ("plain", "noop", "control")),
    (2,),
    "grpo",
)
# right samples of four, per benchmark, policy (base, seed 0, seed 1) and problem
RIGHT = {
    "plain": [[2, 2, 1, 0], [4, 3, 2, 1], [4, 4, 4, 2]],
    "noop": [[1, 2, 0, 0], [2, 3, 1, 1], [3, 2, 4, 0]],
    "control": [[2, 1, 1, 0], [4, 3, 1, 1], [4, 3, 4, 1]],
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    place = layout(tmp_path)
    tables = {"plain": ORIGINALS}
    tables |= {n: made(how, [("plain", ORIGINALS)], 0)[0] for n, how in (("noop", "noop"), ("control", "noop_control"))}
    cells = [(Cell("m", BASE, 0), 0), (Cell("m", "grpo", 0), 2), (Cell("m", "grpo", 1), 2)]
    blank = {c.name: "" for c in SCHEMAS["samples"]} | {"seed": 0, "token_count": 1, "correct_library": None}
    for name, rows in tables.items():
        write_table("problems", rows[::-1], place.benchmark(name))  # rows are paired by tag, not by place
        for (cell, step), right in zip(cells, RIGHT[name], strict=True):
            samples = [
                blank | {"problem_id": row["problem_id"], "sample": k, "correct": k < count}
                for row, count in zip(rows, right, strict=True)
                for k in range(4)
            ]
            write_table("samples", samples, place.samples(cell, step, name))
    return tmp_path


def test_drops_are_those_of_the_pairs(study: Path) -> None:
    found = {(d.method, d.against): d for d in drops(study, PLAN) if d.kind == "noop"}
    assert set(found) == {(m, a) for m in (BASE, "grpo") for a in ("untouched", "noop_control")}
    base = found[BASE, "untouched"]
    assert (base.variant, base.reference, base.comparison.difference) == (3 / 16, 5 / 16, -2 / 16)
    grpo = found["grpo", "noop_control"]
    assert (grpo.seeds, grpo.comparison.n) == (2, 4)
    a = [v / 4 for seed in RIGHT["noop"][1:] for v in seed]
    b = [v / 4 for seed in RIGHT["control"][1:] for v in seed]
    wanted = over_problems(a, b, [0, 1, 2, 3] * 2)
    assert (grpo.comparison.difference, grpo.comparison.low) == pytest.approx((wanted.difference, wanted.low))


def test_the_section_shows_them_and_is_absent_without_variants(study: Path) -> None:
    shown = section(study, PLAN)
    assert shown is not None and "−12.5" in shown.html and "Irrelevant clause with a number" in shown.html
    only = Plan(**{**PLAN.__dict__, "benchmarks": PLAN.benchmarks[:1]})
    assert section(study, only) is None

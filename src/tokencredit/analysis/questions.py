"""Which problems are the same question: rows that name one problem as their origin (tag `base:`), and that problem.

The orders of a multiple-choice problem's options and the variants of a problem are rows of one question: what decides
one of them decides the others, so that statistics over problems take them as one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokencredit.analysis.plan import Plan, layout
from tokencredit.study.tables import read_table


def questions(expected: Plan, root: Path | str) -> Mapping[str, str]:
    """problem_id -> problem_id of the question, where they differ, from the benchmarks' tables that exist."""
    out: dict[str, str] = {}
    for benchmark in expected.benchmarks:
        path = Path(layout(root).benchmark(benchmark.name))
        if path.exists():
            table = read_table("problems", path, ("problem_id", "tags"))
            for name, tags in zip(table["problem_id"].to_pylist(), table["tags"].to_pylist(), strict=True):
                base = next((tag.removeprefix("base:") for tag in tags if tag.startswith("base:")), None)
                if base is not None:
                    out[name] = base
    return out

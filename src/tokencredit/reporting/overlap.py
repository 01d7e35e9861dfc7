"""The report's section on overlap: training problems that are test problems, and problems that two benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokencredit.analysis.plan import layout
from tokencredit.reporting.sections import Section
from tokencredit.reporting.text import fixed
from tokencredit.study.tables import read_json, read_table

TITLE = "Training problems in the tests"
TRAIN = "train"
SHOWN = 20  # pairs shown with both texts, per pair of sets
LONGEST = 1500  # characters of a text

Data = dict[str, Any]


def section(root: Path | str, label: Callable[[str], str] = str) -> Section:
    """What problems/overlap.parquet of the study at `root` says. label: a benchmark's name as the report shows it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    table = Path(layout(root).overlap)
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    rows = read_table("overlap", table).to_pylist() if table.exists() else None
    settings = read_json(table.with_suffix(".json"))["spec"]["overlap"] if table.exists() else {}
    html = environment.get_template("overlap.html.j2").render(
        missing=rows is None,
        settings=settings,
        train=_groups([r for r in rows or () if r["set"] == TRAIN], label),
        shared=_groups([r for r in rows or () if r["set"] != TRAIN], label),
    )
    return Section(TITLE, html)


def _groups(rows: Sequence[Data], label: Callable[[str], str]) -> list[Data]:
    """One entry for every pair of sets, with its counts and the first pairs of texts."""
    found: dict[tuple[str, str], list[Data]] = {}
    for row in rows:
        found.setdefault((row["set"], row["benchmark"]), []).append(row)
    return [
        {
            "set": one if one == TRAIN else label(one),
            "benchmark": label(other),
            "exact": sum(r["kind"] == "exact" for r in pairs),
            "near": sum(r["kind"] == "near" for r in pairs),
            "problems": len({r["problem_id"] for r in pairs}),
            "dropped": len({r["problem_id"] for r in pairs if r["dropped"]}),
            "other_answer": sum(r["answer"] != r["benchmark_answer"] for r in pairs),
            "pairs": [_pair(r) for r in sorted(pairs, key=lambda r: -r["jaccard"])[:SHOWN]],
            "more": max(0, len(pairs) - SHOWN),
        }
        for (one, other), pairs in found.items()
    ]


def _pair(row: Data) -> Data:
    cut = {k: row[k][:LONGEST] for k in ("problem", "benchmark_problem")}
    return {**row, **cut, "jaccard": fixed(row["jaccard"])}

"""The report's section on overlap says what the table says, and shows both texts."""

from __future__ import annotations

from pathlib import Path

from tokencredit.problems.overlap import table
from tokencredit.reporting.overlap import section
from tokencredit.study.tables import write_json, write_table


def rows(name: str, *texts: str) -> list[dict]:
    return [{"problem_id": f"{name}{i}", "problem": t, "answer": name, "tags": []} for i, t in enumerate(texts)]


def written(root: Path, train: list[dict], benchmarks: dict[str, list[dict]], drop: bool) -> Path:
    against = list(benchmarks) if drop else []
    write_table("overlap", table(train, benchmarks, 0.6, against), root / "problems" / "overlap.parquet")
    settings = {"drop": drop, "threshold": 0.6, "against": against}
    write_json(root / "problems" / "overlap.json", {"spec": {"overlap": settings}})
    return root


def test_both_texts_stand_side_by_side_and_are_escaped(tmp_path: Path) -> None:
    train, tests = (
        rows("t", "Find $x \\le 3$ & <b>more</b>."),
        rows("b", "Find $x \\leq 3$ & <b>more</b>", "Another one here."),
    )
    kept = section(written(tmp_path, train, {"b": tests, "c": tests[1:]}, False), lambda name: f"Set {name}").html
    assert "Find $x \\le 3$ &amp; &lt;b&gt;more" in kept and "Find $x \\leq 3$ &amp; &lt;b&gt;more" in kept
    assert "<b>more" not in kept
    assert "overlap.drop: true" in kept
    assert "Set b" in kept and "count twice in a macro mean" in kept
    dropped = section(written(tmp_path, train, {"b": tests}, True)).html
    assert "left out of training" in dropped and "overlap.drop: true" not in dropped


def test_nothing_found_and_nothing_compared(tmp_path: Path) -> None:
    assert "Not compared yet" in section(tmp_path).html
    assert (
        "No training problem stands in a benchmark"
        in section(written(tmp_path, rows("t", "a b"), {"b": rows("b", "c d")}, False)).html
    )

"""The section on completions: numbers of the record, words that follow the intervals, labels escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokencredit.reporting.completion import section, verdict
from tokencredit.reporting.sections import Entry
from tokencredit.study.tables import write_json


def estimate(value: float, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def record(controls: list[str]) -> dict[str, Any]:
    own = {"exact": estimate(0.5, 0.4, 0.6), "rouge_l": estimate(0.75, 0.7, 0.8), "answer": estimate(0.25, 0.1, 0.4)}
    against = {k: estimate(0.3, 0.2, 0.4) for k in own}
    sets = {name: own | {"problems": 30} for name in ("aime", "easy")}
    return {
        "spec": {"analysis": {"share": 0.6, "problems": ["aime", "easy"]}},
        "left_out": {"aime": 1, "easy": 0},
        "results": {"sets": sets, "against": {"aime": against} if controls else {}, "controls": controls}
        | {"control": controls[0] if controls else None},
    }


def entry(folder: Path, **more: Any) -> Entry:
    return Entry("c", "Completions", "m", "Base model", 0, 0, folder, sets={"aime": "AIME <2024>"}, **more)


def test_numbers_and_verdicts_are_there(tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", record(["easy"]))
    html = section([entry(tmp_path), entry(tmp_path / "none")], tmp_path).html
    for text in ("AIME &lt;2024&gt;", "<b>50.0</b>", "40.0 to 60.0", "<b>0.75</b>", "control", "60 % of each problem"):
        assert text in html, text
    assert "1 problem was too" in html
    assert "Not run yet:</b> Base model." in html
    assert "Some of it may have been read" in html


def test_without_controls_nothing_is_concluded(tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", record([]))
    html = section([entry(tmp_path)], tmp_path).html
    assert "nothing tells memory from guessing" in html
    assert "may have been read" not in html


def test_a_difference_that_may_be_none_is_told_as_one() -> None:
    wide = {m: estimate(0.1, -0.1, 0.3) for m in ("exact", "rouge_l", "answer")}
    assert "nothing shows that more" in verdict("AIME", "Easy", wide)
    assert "may have been read" in verdict("AIME", "Easy", wide | {"rouge_l": estimate(0.1, 0.05, 0.15)})
    assert "nothing shows that more" in verdict("AIME", "Easy", wide | {"rouge_l": estimate(0.1, None, None)})

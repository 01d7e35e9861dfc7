"""Perturbations from a file: matched by id or text, validated like everyone's, and every row accounted for."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokencredit.problems.imported import make_imported
from tokencredit.problems.stages import build_semifactuals
from tokencredit.problems.text import problem_id
from tokencredit.problems.validator import SEMIFACTUAL
from tokencredit.study.base import parse
from tokencredit.study.config import Semifactuals
from tokencredit.study.errors import UserError
from tokencredit.study.origins import ImportOrigin
from tokencredit.study.provenance import file_digest
from tokencredit.study.tables import read_table, write_table

WALK = "Maria walks to the garden. She picks 12 flowers. How many flowers does she have?"
SUM = "Find the value of $1 + \\frac{1}{2}$, if $x \\le 3$."
PROBLEMS = [
    {"problem_id": problem_id(text), "source": f"own.jsonl#{name}", "problem": text, "answer": answer,
     "answer_kind": "integer", "choices": [], "tags": []}
    for name, text, answer in (("walk-1", WALK, "12"), ("sum-1", SUM, "1.5"))
]  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"problem_id": PROBLEMS[0]["problem_id"], "kind": "typo_noise", "text": WALK.replace("garden", "gadren")},
    {"problem_id": "walk-1", "kind": "scenario_wrap", "text": f"On a rainy day, {WALK}"},
    {"problem": SUM.replace(" ", "  "), "kind": "paraphrase", "text": SUM.replace("Find", "Determine")},
    {"problem": SUM, "kind": "irrelevant_context", "text": f"{SUM} k3v9qp"},
    {"problem": SUM, "kind": "irrelevant_context", "text": f"{SUM} and snow is snow"},  # the first is enough
    {"problem": WALK, "kind": "paraphrase", "text": WALK.replace("12", "13")},  # refused
    {"problem": WALK, "kind": "irrelevant_context", "text": f"{WALK} [tag: a12bc]"},  # gives the answer away
    {"problem": "Some other text.", "kind": "paraphrase", "text": "Another text."},  # names no problem
    {"problem": WALK, "kind": "shouting", "text": WALK.upper()},  # a kind nobody knows
]


def written(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    names = ["problem_id", "problem", "kind", "text"]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([{n: r.get(n) for n in names} for r in rows]), path)
    else:
        with open(path, "w", newline="") as handle:
            csv.DictWriter(handle, names).writeheader()
            csv.DictWriter(handle, names).writerows(rows)
    return path


def origin(file: Path, **more: Any) -> ImportOrigin:
    return parse(ImportOrigin, {"kind": "import", "path": str(file), **more})


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_every_row_is_matched_validated_or_counted(tmp_path: Path, ending: str) -> None:
    rows, counts = make_imported(PROBLEMS, SEMIFACTUAL, 0, origin(written(tmp_path / f"texts.{ending}")))
    assert [(r["problem_id"], r["kind"]) for r in rows] == [(p["problem_id"], k) for p in PROBLEMS for k in SEMIFACTUAL]
    assert {r["origin"] for r in rows} == {"import"}
    assert [r["reason"] for r in rows] == [
        "number changed: 12 -> 13", "", "", "the text gives the answer away",
        "", "the file has no text of this kind", "the file has no text of this kind", "",
    ]  # fmt: skip
    assert rows[7]["text"] == f"{SUM} k3v9qp"
    assert counts == {"rows": 9, "matched": 7, "unmatched": 1, "other_kind": 1, "not_needed": 1}


def test_rules_may_fill_what_is_missing(tmp_path: Path) -> None:
    rows, _ = make_imported(PROBLEMS, SEMIFACTUAL, 0, origin(written(tmp_path / "t.jsonl"), fallback="rules"))
    assert [(r["origin"], r["valid"]) for r in rows] == [
        ("import", False), ("rule", True), ("import", True), ("import", True), ("import", False), ("rule", True),
        ("import", True), ("rule", True), ("rule", True), ("import", True),
    ]  # fmt: skip


def test_a_later_text_is_used_where_the_first_is_refused(tmp_path: Path) -> None:
    texts = [WALK, f"{WALK} k3v9qp", f"{WALK} [ref: q7xk2]"]
    rows = [{"problem_id": "walk-1", "kind": "irrelevant_context", "text": text} for text in texts]
    made, _ = make_imported(PROBLEMS, ("irrelevant_context",), 0, origin(written(tmp_path / "t.jsonl", rows)))
    assert [(r["text"], r["reason"]) for r in made[:2]] == [(WALK, "unchanged"), (f"{WALK} k3v9qp", "")]


def test_other_column_names_and_an_ambiguous_id(tmp_path: Path) -> None:
    rows = [{"uid": "walk-1", "type": "typo_noise", "new": WALK.replace("garden", "gadren")}]
    columns = {"id": "uid", "problem": "question", "kind": "type", "text": "new"}
    path = written(tmp_path / "t.jsonl", rows)
    made, counts = make_imported(PROBLEMS, ("typo_noise",), 0, origin(path, columns=columns))
    assert made[0]["valid"] and counts["matched"] == 1
    twice = [*PROBLEMS, {**PROBLEMS[0], "problem_id": "0" * 16, "problem": "Add 1 and 2.", "source": "x#walk-1"}]
    with pytest.raises(UserError, match="none of its 1 rows names one of the 3 problems by 'uid' or 'question'"):
        make_imported(twice, ("typo_noise",), 0, origin(path, columns=columns))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"path": "gone.jsonl"}, r"gone.jsonl: no such file"),
        ({"sha256": "00"}, "the study asks for 00"),
        ({"columns": {"text": "words"}}, "no column words; the columns are problem_id, kind, text"),
        ({"columns": {"id": "a", "problem": "b"}}, "no column a or b"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = written(tmp_path / "t.jsonl")
    with pytest.raises(UserError, match=reason):
        make_imported(PROBLEMS, SEMIFACTUAL, 0, origin(path, **change))


def test_a_file_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(UserError, match=r"must be .jsonl, .parquet or .csv"):
        make_imported(PROBLEMS, SEMIFACTUAL, 0, origin(tmp_path / "t.xlsx"))


def test_the_stage_names_the_file_and_counts_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "texts.jsonl")
    monkeypatch.setenv("TEXTS", str(tmp_path))
    settings = {"kinds": list(SEMIFACTUAL), "origin": {"kind": "import", "path": "${TEXTS}/texts.jsonl"}}
    assert parse(Semifactuals, settings).files == [str(path)]
    write_table("problems", PROBLEMS, tmp_path / "p.parquet")
    spec = {"stage": "semifactuals", "seed": 1, "semifactuals": settings}
    build_semifactuals(spec, tmp_path / "p.parquet", tmp_path / "s.parquet", tmp_path / "s.json")
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["digests"]["inputs"][str(path)] == file_digest(path)
    assert record["import"]["unmatched"] == 1
    assert record["acceptance"] == dict.fromkeys(SEMIFACTUAL, 0.5)
    assert record["refused"]["paraphrase"]["reasons"] == {"number changed": 1}
    assert len(read_table("semifactuals", tmp_path / "s.parquet")) == 8

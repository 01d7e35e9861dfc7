"""The two stages, from spec to table and record."""

import json
from pathlib import Path

import pytest

from tokencredit.problems.stages import build_overlap, build_problems, build_semifactuals
from tokencredit.problems.validator import SEMIFACTUAL
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import file_digest
from tokencredit.study.tables import read_table


def spec(**source: object) -> dict:
    return {"stage": "problems", "name": "train", "seed": 7, "source": source}


SYNTHETIC = spec(kind="synthetic", split="train", size=30)
PERTURB = {
    "stage": "semifactuals", "seed": 7,
    "semifactuals": {"kinds": list(SEMIFACTUAL), "counterfactual": True, "origin": "rules"},
}  # fmt: skip


def test_synthetic_problems_and_their_perturbations(tmp_path: Path) -> None:
    table, perturbed = tmp_path / "train.parquet", tmp_path / "semifactuals.parquet"
    build_problems(SYNTHETIC, table, tmp_path / "train.json")
    build_semifactuals(PERTURB, table, perturbed, tmp_path / "semifactuals.json")
    rows = read_table("semifactuals", perturbed).to_pylist()
    assert len(rows) == 30 * 5
    record = json.loads((tmp_path / "semifactuals.json").read_text())
    assert record["acceptance"] == dict.fromkeys((*SEMIFACTUAL, "counterfactual"), 1.0)
    assert record["counts"]["problems_with_every_semifactual"] == 30
    assert record["digests"]["inputs"] == {str(table): file_digest(table)}
    record = json.loads((tmp_path / "train.json").read_text())
    assert record["spec"] == SYNTHETIC
    assert record["counts"] == {"rows": 30, "kept": 30}
    assert record["digests"]["output"] == file_digest(table)
    assert set(record) >= {"provenance", "seconds"}


def test_tables_are_byte_identical_between_runs(tmp_path: Path) -> None:
    digests = set()
    for run in ("a", "b"):
        folder = tmp_path / run
        build_problems(SYNTHETIC, folder / "train.parquet", folder / "train.json")
        build_semifactuals(PERTURB, folder / "train.parquet", folder / "s.parquet", folder / "s.json")
        digests.add((file_digest(folder / "train.parquet"), file_digest(folder / "s.parquet")))
    assert len(digests) == 1


def test_a_local_file_with_refusals(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    lines = [
        {"id": "a", "problem": "Find the sum of $1$ and $2$.", "answer": 3},
        {"id": "b", "problem": "$2+2=$", "answer": 4},
        {"id": "c", "problem": "Find the sum of $1$  and $2$.", "answer": "3.0"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    table = tmp_path / "out" / "own.parquet"
    build_problems(spec(kind="jsonl", path=str(path), expect_rows=3), table, tmp_path / "own.json")
    record = json.loads((tmp_path / "own.json").read_text())
    assert record["counts"] == {"rows": 3, "kept": 2, "dropped_duplicate": 1}
    assert record["dropped"] == {"duplicate": ["c"]}
    assert record["answer_kinds"] == {"integer": 2}
    assert record["digests"]["inputs"] == {str(path): file_digest(path)}

    build_semifactuals(PERTURB, table, tmp_path / "s.parquet", tmp_path / "s.json")
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["acceptance"]["paraphrase"] == record["acceptance"]["scenario_wrap"] == 0.5
    assert record["acceptance"]["irrelevant_context"] == 1.0
    assert record["refused"]["paraphrase"]["reasons"] == {"no valid paraphrase found": 1}
    assert len(record["refused"]["paraphrase"]["problem_ids"]) == 1


def benchmark(folder: Path, name: str, *texts: str) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(json.dumps({"id": i, "problem": t, "answer": "1"}) for i, t in enumerate(texts)))
    table = folder / "bench" / f"{name}.parquet"
    build_problems(spec(kind="jsonl", path=str(path)), table, folder / f"{name}.json")
    return table


CLOSING = "can be written as $\\frac{m}{n}$ where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
ASKED = (f"The ratio of two circles {CLOSING}", "Find the least $x$ with $x \\le 3$.", "Seat ten people at a table.")


def test_overlapping_problems_are_reported_or_left_out_before_the_draw(tmp_path: Path) -> None:
    candidates = benchmark(tmp_path, "candidates", *ASKED, "Find the sum of all odd $n$.")
    tests = [
        benchmark(tmp_path, "one", "Find the least \\(x\\) with \\(x \\leq 3\\)", f"The least such ratio {CLOSING}"),
        benchmark(tmp_path, "two", "Seat ten people at a table"),
    ]
    settings = {"drop": True, "threshold": 0.6, "against": ["one"]}
    build_overlap({"overlap": settings}, candidates, tests, tmp_path / "o.parquet", tmp_path / "o.json")
    rows = read_table("overlap", tmp_path / "o.parquet").to_pylist()
    assert [(r["benchmark"], r["problem"], r["dropped"]) for r in rows] == [
        ("one", ASKED[1], True),
        ("two", ASKED[2], False),
    ]
    assert json.loads((tmp_path / "o.json").read_text())["counts"] == {"pairs": 2, "training_problems": 2, "dropped": 1}

    drawn = {"stage": "problems", "name": "train", "seed": 7, "size": 3, "threshold": 0.6}
    build_problems(drawn, tmp_path / "t.parquet", tmp_path / "t.json", candidates, tests[:1])
    kept = read_table("problems", tmp_path / "t.parquet").to_pylist()
    assert len(kept) == 3 and ASKED[1] not in {r["problem"] for r in kept}
    record = json.loads((tmp_path / "t.json").read_text())
    assert record["counts"] == {"rows": 4, "kept": 3, "dropped_in_one": 1}
    assert record["dropped"] == {"in_one": ["candidates.jsonl#1"]}


def test_another_copy_of_a_known_set_is_said_to_be_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "problem": "a", "answer": "1"}\n')
    asked = spec(kind="jsonl", path=str(path), known_sha256="0" * 64)
    build_problems(asked, tmp_path / "o.parquet", tmp_path / "o.json")
    assert json.loads((tmp_path / "o.json").read_text())["copy"] == "other"
    assert "not the copy that the registry knows" in caplog.text


def test_a_set_without_usable_problems_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "problem": "a", "answer": "1"}\n{"id": 2, "problem": "a", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"none of 2 rows is usable .dropped: contradictory_answers 2"):
        build_problems(spec(kind="jsonl", path=str(path)), tmp_path / "o.parquet", tmp_path / "o.json")
    assert not (tmp_path / "o.parquet").exists()


def test_an_unsound_spec_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="problems 'train'"):
        build_problems(spec(kind="synthetic", split="train"), tmp_path / "o.parquet", tmp_path / "o.json")

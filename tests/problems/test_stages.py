"""The two stages, from spec to table and record."""

import json
from pathlib import Path

import pytest

from tokencredit.problems.stages import build_problems, build_semifactuals
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


def test_a_set_without_usable_problems_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "problem": "a", "answer": "1"}\n{"id": 2, "problem": "a", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"none of 2 rows is usable .dropped: contradictory_answers 2"):
        build_problems(spec(kind="jsonl", path=str(path)), tmp_path / "o.parquet", tmp_path / "o.json")
    assert not (tmp_path / "o.parquet").exists()


def test_an_unsound_spec_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="problems 'train'"):
        build_problems(spec(kind="synthetic", split="train"), tmp_path / "o.parquet", tmp_path / "o.json")

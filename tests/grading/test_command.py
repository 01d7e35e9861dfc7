"""`tokencredit grade`: a line out for a line in."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tokencredit.grading.command import grade_file
from tokencredit.study.errors import UserError

CASES = [
    (b'{"id": 1, "gold": "073", "response": "so \\\\boxed{73}", "benchmark": "aime_2024"}', True, "ok"),
    (b"not json", False, "malformed"),
    (b'{"id": "a", "gold": "5", "response": "5"}', False, "no_box"),
    (b"", False, "malformed"),
    (b'{"id": "b", "gold": 5, "response": "\\\\boxed{5.0}"}', True, "ok"),
    (b'{"id": "c", "gold": "B", "response": "\\\\boxed{(B)}", "kind": "choice"}', True, "ok"),
    (b'{"id": "d", "gold": "B", "response": "\\\\boxed{(B)}", "kind": "essay"}', False, "malformed"),
    (b'{"id": "e", "gold": "41.8", "response": "\\\\boxed{41.9}", "benchmark": "Minerva-Math"}', True, "ok"),
    (b'{"id": "f", "gold": "41.8", "response": "\\\\boxed{41.9}"}', False, "ok"),
    (b'{"id": "g", "gold": "41.8", "response": "\\\\boxed{41.9}", "tolerance": 0.1}', True, "ok"),
    (b'{"id": "h", "gold": "41.8", "response": "\\\\boxed{41.9}", "tolerance": "much"}', False, "malformed"),
    (b'[1, 2]', False, "malformed"),
    (b'{"id": "i", "gold": "5"}', False, "malformed"),
    (b'{"id": "j", "gold": "5", "response": "\\\\boxed{5} \\\\boxed{5", "truncated": true}', False, "unclosed"),
    (b'{"id": "k", "gold": "5", "response": "\xff\xfe \\\\boxed{5}"}', True, "ok"),
    (b'{"id": "l", "gold": "' + b"7" * 5000 + b'", "response": "\\\\boxed{' + b"7" * 5000 + b'}", "kind": "integer"}', True, "ok"),
    (b'{"id": "m", "gold": "5", "response": "\\\\boxed{\\ud800}"}', False, "refused"),
]  # fmt: skip


def test_one_line_out_for_one_line_in(tmp_path: Path) -> None:
    path, out = tmp_path / "cases.jsonl", io.StringIO()
    path.write_bytes(b"\n".join(line for line, _, _ in CASES))
    counts = grade_file(path, out, workers=1, library=False)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(r["correct"], r["status"]) for r in records] == [(right, status) for _, right, status in CASES]
    assert records[0]["id"] == 1
    assert records[2]["id"] == "a"
    assert records[1]["id"] is None
    assert records[6]["id"] == "d"
    assert "essay" in records[6]["error"]
    assert list(records[0]) == ["id", "correct", "correct_library", "extracted", "status", "seconds"]
    assert counts["malformed"] == 6
    assert counts["correct"] == sum(right for _, right, _ in CASES)
    assert out.getvalue().isascii()


def test_an_empty_file_and_no_file(tmp_path: Path) -> None:
    path, out = tmp_path / "none.jsonl", io.StringIO()
    path.write_bytes(b"")
    assert sum(grade_file(path, out).values()) == 0
    assert out.getvalue() == ""
    with pytest.raises(UserError, match="missing"):
        grade_file(tmp_path / "missing.jsonl", out)

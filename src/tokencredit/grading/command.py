r"""`tokencredit grade CASES.jsonl`: a JSON verdict for every line of JSON cases, in order, whatever they hold.

A case: id, gold, response, and optionally kind (integer, expression, choice), tolerance (relative), truncated, and
benchmark, whose name sets kind and tolerance where the case does not. A verdict: id, correct, correct_library,
extracted, status, seconds; a line that is no case gets the status malformed and says why in `error`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tokencredit.grading.grader import KINDS, Grader, Item, Verdict
from tokencredit.grading.integers import canonical_integer
from tokencredit.study.errors import UserError

CHUNK = 2000  # cases graded together

# prefix of a benchmark's name -> (kind, relative tolerance)
_BENCHMARKS: dict[str, tuple[str, float | None]] = {
    "aime": ("integer", None),
    "amc": ("integer", None),
    "dapo": ("integer", None),
    "gsm8k": ("integer", None),
    "gpqa": ("choice", None),
    "minerva": ("expression", 1e-2),
}


def grade_file(
    path: str | Path, out: TextIO, workers: int = 2, library: bool = True, timeout: float = 5.0
) -> Counter[str]:
    """Grade the cases in `path` ("-": standard input), one line each to `out`; counts of statuses and of "correct".

    Raises UserError if the file cannot be read.
    """
    counts: Counter[str] = Counter()
    with Grader(workers=workers, library=library, timeout=timeout) as grader:
        for chunk in _chunks(path):
            cases = [_case(line) for line in chunk]
            verdicts = iter(grader.grade([item for _, item, _ in cases if item is not None]))
            for case_id, item, error in cases:
                verdict = next(verdicts) if item is not None else Verdict(False, None, "", "malformed", 0.0)
                record: dict[str, Any] = {"id": case_id, **vars(verdict)}
                record["seconds"] = round(verdict.seconds, 6)
                if error:
                    record["error"] = error
                out.write(json.dumps(record) + "\n")
                counts[verdict.status] += 1
                counts["correct"] += verdict.correct
            out.flush()
    return counts


def _chunks(path: str | Path) -> Iterator[list[bytes]]:
    """Lines of the file, a chunk at a time; bytes, since a case may hold anything."""
    try:
        with sys.stdin.buffer if str(path) == "-" else open(path, "rb") as file:
            chunk: list[bytes] = []
            for line in file:
                chunk.append(line)
                if len(chunk) == CHUNK:
                    yield chunk
                    chunk = []
            if chunk:
                yield chunk
    except OSError as error:
        raise UserError(f"cannot read the cases {path}: {error.strerror}") from error


def _case(line: bytes) -> tuple[Any, Item | None, str]:
    """(id, item, "") of a case; (id or None, None, what is wrong) of anything else."""
    try:
        text = line.decode("utf-8", errors="replace")
        case = json.loads(text, parse_int=_integer)
        exact = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        return None, None, f"not JSON: {error}"[:200]
    if not isinstance(case, dict):
        return None, None, "not a JSON object"
    case_id = case.get("id")
    gold, response = exact.get("gold"), exact.get("response")
    if not isinstance(gold, str) or not isinstance(response, str):
        return case_id, None, "gold and response must be texts"
    kind, tolerance = _defaults(str(case.get("benchmark") or ""), gold)
    kind = case.get("kind") or kind
    if kind not in KINDS:
        return case_id, None, f"unknown kind {kind!r}: one of {', '.join(KINDS)}"[:200]
    if case.get("tolerance") is not None:
        tolerance = case["tolerance"]
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
            return case_id, None, "tolerance must be a number that is not negative"
        tolerance = float(tolerance)
    return case_id, Item(gold, response, kind, tolerance, bool(case.get("truncated"))), ""


def _integer(digits: str) -> int | float:
    """An integer of any length; beyond Python's limit on digits it is only ever a gold, which is read as text."""
    return int(digits) if len(digits) <= 4000 else math.inf


def _defaults(benchmark: str, gold: str) -> tuple[str, float | None]:
    """Kind and tolerance of a benchmark by the start of its name."""
    name = benchmark.lower().replace("-", "_")
    kind, tolerance = next((v for k, v in _BENCHMARKS.items() if name.startswith(k)), ("expression", None))
    if kind == "integer" and canonical_integer(gold) is None:
        kind = "expression"
    return kind, tolerance

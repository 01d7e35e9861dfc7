"""Outcomes from a few characters, for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tokencredit.analysis.side_by_side import Pair
from tokencredit.evaluation.metrics import Outcomes, outcomes
from tokencredit.study.tables import schema


def made(problems: dict[str, str], tokens: dict[str, Sequence[int]] | int = 10) -> Outcomes:
    """{"problem": "110t"}: one sample per character, 1 right, 0 wrong, t wrong and cut off. tokens: of each sample."""
    rows = []
    for name, digits in problems.items():
        lengths = [tokens] * len(digits) if isinstance(tokens, int) else tokens[name]
        for i, (digit, length) in enumerate(zip(digits, lengths, strict=True)):
            rows.append(
                {
                    "problem_id": name, "sample": i, "seed": i, "prompt_hash": "0" * 16, "text": "",
                    "token_count": length, "finish_reason": "length" if digit == "t" else "stop", "extracted": "",
                    "correct": digit == "1", "correct_library": None, "status": "ok",
                }
            )  # fmt: skip
    return outcomes(pa.Table.from_pylist(rows, schema=schema("samples")))


def pair(ours: Sequence[Sequence[Outcomes]], theirs: Sequence[Sequence[Outcomes]], **origins: str) -> Pair:
    """ours, theirs: [benchmark][seed]; origins: problem -> question."""
    names = tuple("abc"[: len(ours)])
    group = "a" if len(names) == 1 else "macro"
    head = {"study": "s", "model": "m", "method": "new", "baseline": "old", "benchmark": group, "step": 2}
    seeds = tuple(range(len(ours[0])))
    return Pair(head, group, names, seeds, tuple(map(tuple, ours)), tuple(map(tuple, theirs)), origins)

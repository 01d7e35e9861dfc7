"""Orders of the options of a multiple-choice problem, so that no letter is favoured.

A problem with the options o_1 .. o_n becomes one row per order s: option s(i) stands at letter i, and the gold is the
letter of the right one. All n! orders (24 for GPQA's four options, as in SCAPO's evaluation), or the first `count` of
them in an order drawn by the seed. Tags: `base` names the problem, `order` the original letters in their new order.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

from tokencredit.grading.choice import choice_letter
from tokencredit.problems.text import problem_id
from tokencredit.study.seeds import derive


def reordered(row: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """`count` rows (at most n!) of the table `problems`, with a right letter each; all n! in lexicographic order."""
    options, right = row["choices"], ord(choice_letter(row["answer"]) or "A") - ord("A")
    letters = "".join(chr(ord("A") + i) for i in range(len(options)))
    out = []
    for order in _orders(len(options), count, derive(seed, "options", row["problem_id"])):
        choices = [options[i] for i in order]
        out.append(
            {
                **row,
                "problem_id": problem_id(row["problem"], choices),
                "choices": choices,
                "answer": letters[order.index(right)],
                "tags": [*row["tags"], f"base:{row['problem_id']}", f"order:{''.join(letters[i] for i in order)}"],
            }
        )
    return out


def _orders(n: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """All n! orders if `count` asks for them, else so many distinct ones by chance; more extend fewer."""
    if count >= math.factorial(n):
        return list(itertools.permutations(range(n)))
    rng, found = random.Random(seed), dict[tuple[int, ...], None]()
    while len(found) < count:
        found.setdefault(tuple(rng.sample(range(n), n)))
    return list(found)

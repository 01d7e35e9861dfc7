"""Sets made from other sets: years pooled, and problems with something in them that must not matter.

    pool          the parts' problems one after another, as they are
    noop          one sentence with a number that does not matter, before the final question (variants_noop.py)
    noop_control  the same sentence at the same place, without the number
    thinkbench    four variants of each problem (variants_noise.py)

Texts are drawn by hash of (seed, kind, problem_id), so that neither order nor neighbours matter, and every text passes
its kind's validator. A variant's tags name its problem (`base:PROBLEM_ID`) and its kind (`variant:KIND`), which
pairs it with the problem as it stands and with its control. The sets are OUR RECONSTRUCTION of the NoOp and ThinkBench
variants that SCAPO (arXiv 2609.40360) reports on: its own have not been seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokencredit.problems.cleaning import Audit
from tokencredit.problems.text import problem_id
from tokencredit.problems.variants_noise import appended, characters, scenario, words
from tokencredit.problems.variants_noop import control, noop
from tokencredit.study.seeds import derive

Writer = Callable[[random.Random, Mapping[str, Any]], str]
# how -> kinds of row: (name, purpose of the seed, writer). A clause and its control share their draws.
KINDS: Mapping[str, Sequence[tuple[str, str, Writer]]] = {
    "noop": [("noop", "noop", noop)],
    "noop_control": [("noop_control", "noop", control)],
    "thinkbench": [(w.__name__, w.__name__, w) for w in (scenario, characters, words, appended)],
}


def made(
    how: str, parts: Iterable[tuple[str, Sequence[Mapping[str, Any]]]], seed: int
) -> tuple[list[dict[str, Any]], Audit]:
    """Rows of the table `problems` made from the parts' (name, rows); problems without a valid text are listed."""
    rows = [{**row, "tags": [*row["tags"], f"set:{name}"]} for name, part in parts for row in part]
    audit = Audit(rows=len(rows) * len(KINDS.get(how, [()])))
    out: dict[str, dict[str, Any]] = {}
    for row in rows:
        for kind, purpose, write in KINDS.get(how, []):
            rng = random.Random(derive(seed, "variant", purpose, row["problem_id"]))
            if text := write(rng, row):
                variant = _variant(row, kind, text)
                out[variant["problem_id"]] = variant
            else:
                audit.dropped[f"no_{kind}_found"].append(row["problem_id"])
        if how == "pool" and row["problem_id"] in out:
            audit.dropped["duplicate"].append(row["source"])
        elif how == "pool":
            out[row["problem_id"]] = row
    audit.kept = len(out)
    return list(out.values()), audit


def _variant(row: Mapping[str, Any], kind: str, text: str) -> dict[str, Any]:
    return {
        **row,
        "problem_id": problem_id(text, row["choices"]),
        "source": f"{row['source']}+{kind}",
        "problem": text,
        "tags": [*row["tags"], f"base:{row['problem_id']}", f"variant:{kind}"],
    }

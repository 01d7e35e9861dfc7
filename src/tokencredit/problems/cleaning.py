"""From raw rows to the table `problems`: nothing is dropped silently, and no gold is kept that can't be graded.

Order: instruction stripped, white space trimmed, empty rows, language, duplicates and contradictions, answer
kind, golds, draw. Every dropped row is counted, and listed by id, under its reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokencredit.problems.text import problem_id
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive
from tokencredit.study.sources import FileProblems, HubProblems

LISTED = 20  # ids listed per reason
_HAN = re.compile(r"[\u3400-\u9fff]")


@dataclass
class Audit:
    """What became of the rows: counts, and up to LISTED ids per reason."""

    rows: int = 0
    kept: int = 0
    dropped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    flagged: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def as_json(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "kept": self.kept}
        counts |= {f"dropped_{reason}": len(ids) for reason, ids in self.dropped.items()}
        counts |= {f"flagged_{reason}": len(ids) for reason, ids in self.flagged.items()}
        lists = {"dropped": self.dropped, "flagged": self.flagged}
        return {"counts": counts} | {k: {r: ids[:LISTED] for r, ids in v.items()} for k, v in lists.items()}


def clean(
    raw: Iterable[Mapping[str, Any]], source: FileProblems | HubProblems, label: str, seed: int
) -> tuple[list[dict[str, Any]], Audit]:
    """Rows of the table `problems` from raw rows (sources.read), and what was dropped and flagged.

    `label` names the set in the column `source` (file name, or hub id and revision) before "#" and the row's id.
    Raises UserError where the row count is not the expected one, or golds can't be graded.
    """
    audit = Audit()
    rows = list(raw)
    audit.rows = len(rows)
    if source.expect_rows is not None and audit.rows != source.expect_rows:
        raise UserError(f"{label}: {audit.rows} rows, the study expects {source.expect_rows} (expect_rows)")
    kept = [row for row in (_prepare(row, source, label, audit) for row in rows) if row]
    if source.strip_prefix and len(audit.flagged.get("prefix_absent", ())) == len(rows):
        raise UserError(f"{label}: no problem begins with strip_prefix {source.strip_prefix[:60]!r}")
    if source.strip_suffix and len(audit.flagged.get("suffix_absent", ())) == len(rows):
        raise UserError(f"{label}: no problem ends with strip_suffix {source.strip_suffix[-60:]!r}")
    kept = _distinct(kept, audit)
    kind = answer_kind(kept, source.answer_kind)
    kept = _graded(kept, kind, label, source.ungradable, audit)
    kept = draw(kept, source.size, seed, label)
    audit.kept = len(kept)
    return [{k: v for k, v in row.items() if k != "id"} for row in kept], audit


def _prepare(row: Mapping[str, Any], source: FileProblems | HubProblems, label: str, audit: Audit) -> dict[str, Any]:
    """The row with its instruction and outer white space off; {} where it is dropped."""
    name, problem, answer = row["id"], row["problem"].strip(), row["answer"].strip()
    prefix, suffix = source.strip_prefix.strip(), source.strip_suffix.strip()
    if not problem.startswith(prefix):
        audit.flagged["prefix_absent"].append(name)
    if not problem.endswith(suffix):
        audit.flagged["suffix_absent"].append(name)
    problem = problem.removeprefix(prefix).removesuffix(suffix).strip()
    for reason, text in (("empty_problem", problem), ("empty_answer", answer)):
        if not text:
            audit.dropped[reason].append(name)
            return {}
    if source.language != "any" and language(problem) != source.language:
        audit.dropped["language"].append(name)
        return {}
    return {
        "id": name,
        "problem_id": problem_id(problem, row["choices"]),
        "source": f"{label}#{name}",
        "problem": problem,
        "answer": answer,
        "answer_kind": "",
        "choices": list(row["choices"]),
        "tags": list(row["tags"]),
    }


def language(text: str) -> str:
    """ "zh" where any Han character stands in the text, else "en"."""
    return "zh" if _HAN.search(text) else "en"


def _distinct(rows: Sequence[dict[str, Any]], audit: Audit) -> list[dict[str, Any]]:
    """The first row of every problem; none of a problem whose rows contradict each other."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["problem_id"]].append(row)
    out = []
    for group in groups.values():
        if len({_gold_key(row["answer"]) for row in group}) > 1:
            audit.dropped["contradictory_answers"] += [row["id"] for row in group]
            continue
        out.append(group[0])
        if len(group) > 1:
            audit.dropped["duplicate"] += [row["id"] for row in group[1:]]
    return out


def _gold_key(answer: str) -> str:
    """Equal for golds that are the same text or the same integer (073, 73, 73.0)."""
    from tokencredit.grading.integers import canonical_integer

    found = canonical_integer(answer)
    return answer if found is None else found


def answer_kind(rows: Sequence[Mapping[str, Any]], asked: str) -> str:
    """The kind asked for; "auto" is choice where every row has options, integer where every gold is one, else
    expression."""
    from tokencredit.grading.integers import canonical_integer

    if asked != "auto" or not rows:
        return asked if asked != "auto" else "expression"
    if all(row["choices"] for row in rows):
        return "choice"
    return "integer" if all(canonical_integer(row["answer"]) is not None for row in rows) else "expression"


def _graded(rows: list[dict[str, Any]], kind: str, label: str, ungradable: str, audit: Audit) -> list[dict[str, Any]]:
    """Rows with their kind set and float golds of integers written as integers; golds that can't be graded are
    an error that lists them ("error"), dropped ("drop"), or flagged and kept, where they grade wrong ("keep")."""
    from tqdm import tqdm

    from tokencredit.grading import check_gold

    bad: dict[str, str] = {}
    for row in tqdm(rows, desc=f"golds of {label}", mininterval=2, disable=len(rows) < 500):
        row["answer_kind"] = kind
        if kind == "integer":
            row["answer"] = re.sub(r"^([+-]?\d+)\.0+$", r"\1", row["answer"])
            if row["answer"] == "-1":
                audit.flagged["gold_minus_one"].append(row["id"])
        if reason := check_gold(row["answer"], kind) or _outside(row):
            bad[row["id"]] = reason
    if not bad or ungradable == "keep":
        audit.flagged |= {"ungradable_gold": list(bad)} if bad else {}
        return rows
    if ungradable == "drop":
        audit.dropped["ungradable_gold"] += bad
        return [row for row in rows if row["id"] not in bad]
    shown = "; ".join(f"{name}: {reason}" for name, reason in list(bad.items())[:LISTED])
    more = f" (and {len(bad) - LISTED} more)" if len(bad) > LISTED else ""
    raise UserError(f"{label}: {len(bad)} of {len(rows)} golds cannot be graded as {kind}: {shown}{more}")


def _outside(row: Mapping[str, Any]) -> str:
    """Reason where the letter of a choice names none of the options."""
    if row["answer_kind"] != "choice" or not row["choices"]:
        return ""
    from tokencredit.grading.choice import choice_letter

    letter = choice_letter(row["answer"]) or "A"
    return "" if ord(letter) - ord("A") < len(row["choices"]) else f"{letter} is none of {len(row['choices'])} options"


def draw(rows: list[dict[str, Any]], size: int | None, seed: int, label: str) -> list[dict[str, Any]]:
    """`size` rows in the order of the hash of (seed, problem_id): the same ones however the file is ordered, and a
    larger draw extends a smaller one. All rows, in the file's order, for None."""
    if size is None:
        return rows
    if size > len(rows):
        raise UserError(f"{label}: {len(rows)} usable problems, the study asks for {size} (size)")
    return sorted(rows, key=lambda row: derive(seed, "draw", row["problem_id"]))[:size]

"""From raw rows to the table `problems`: nothing is dropped silently, and no gold is kept that can't be graded.

Order: instruction stripped, white space trimmed, empty rows, language, duplicates and contradictions, answer
kind, golds, draw, orders of the options. Every dropped row is counted, and listed by id, under its reason. Two rows
are the same problem if their texts (and options) agree after white space is normalised: problem_id is the key.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokencredit.problems.sources import Raw, Readable
from tokencredit.problems.text import problem_id
from tokencredit.problems.variants_options import reordered
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive

LISTED = 20  # ids listed per reason
KEY = "problem_id: text (and options) without the instruction, white space normalised"
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


@dataclass
class Audit:
    """What became of the rows: counts, up to LISTED ids per reason, and how many there were by each key."""

    rows: int = 0
    kept: int = 0
    repeated: int = 0
    dropped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    flagged: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    distinct: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "kept": self.kept}
        counts |= {"dropped_repeated_row": self.repeated} if self.repeated else {}
        counts |= {f"dropped_{reason}": len(ids) for reason, ids in self.dropped.items()}
        counts |= {f"flagged_{reason}": len(ids) for reason, ids in self.flagged.items()}
        lists = {"dropped": self.dropped, "flagged": self.flagged}
        out = {"counts": counts} | {k: {r: ids[:LISTED] for r, ids in v.items()} for k, v in lists.items()}
        return out | ({"distinct": self.distinct, "key": KEY} if self.distinct else {})


def clean(raw: Raw, source: Readable, label: str, seed: int) -> tuple[list[dict[str, Any]], Audit]:
    """Rows of the table `problems` from raw rows (sources.read), and what was dropped and flagged.

    `label` names the set in the column `source` (file name, or hub id and revision) before "#" and the row's id.
    Raises UserError where the row count is not the expected one, ids repeat that must not, or golds can't be graded.
    """
    audit = Audit(rows=raw.read, repeated=raw.repeated)
    _check_counts(raw, source, label)
    _check_ids(raw, source, label, audit)
    rows = [row for row in (_prepare(row, raw, source, label, audit) for row in raw.rows) if row]
    for what, ids in (("prefix", "prefix_absent"), ("suffix", "suffix_absent")):
        if len(audit.flagged.get(ids, ())) == len(raw.rows):
            raise UserError(f"{label}: no problem {'begins' if what == 'prefix' else 'ends'} with strip_{what}")
    kept = _distinct(rows, audit)
    kind = answer_kind(kept, source.answer_kind)
    kept = _graded(kept, kind, label, source, audit)
    kept = draw(kept, source.size, seed, label)
    if raw.layout.wrong or source.orders > 1:
        kept = [row for one in kept for row in reordered(one, source.orders, seed)]
    audit.kept = len(kept)
    return [{k: v for k, v in row.items() if k != "id"} for row in kept], audit


def _check_counts(raw: Raw, source: Readable, label: str) -> None:
    wanted = (source.expect_rows,) if source.expect_rows is not None else raw.layout.rows
    if wanted and raw.read not in wanted:
        counts = " or ".join(map(str, wanted))
        raise UserError(f"{label}: {raw.read} rows, the study expects {counts} (expect_rows)")


def _check_ids(raw: Raw, source: Readable, label: str, audit: Audit) -> None:
    repeated = [name for name, times in Counter(row["id"] for row in raw.rows).items() if times > 1]
    if repeated and source.unique_ids:
        raise UserError(f"{label}: ids of more than one row: {', '.join(repeated[:LISTED])} (columns.id)")
    if repeated:
        audit.flagged["repeated_id"] += repeated


def _prepare(row: Mapping[str, Any], raw: Raw, source: Readable, label: str, audit: Audit) -> dict[str, Any]:
    """The row with its instruction and outer white space off; {} where it is dropped."""
    name, problem, answer = row["id"], row["problem"].strip(), row["answer"].strip()
    prefix, suffix = raw.layout.strip_prefix.strip(), raw.layout.strip_suffix.strip()
    if not problem.startswith(prefix):
        audit.flagged["prefix_absent"].append(name)
    if not problem.endswith(suffix):
        audit.flagged["suffix_absent"].append(name)
    problem = problem.removeprefix(prefix).removesuffix(suffix).strip()
    empty = "empty_problem" if not problem else "empty_answer" if not answer or not all(row["choices"]) else ""
    if empty:
        audit.dropped[empty].append(name)
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
    out, contradictory = [], 0
    for group in groups.values():
        if len({_gold_key(row["answer"]) for row in group}) > 1:
            audit.dropped["contradictory_answers"] += [row["id"] for row in group]
            contradictory += 1
            continue
        out.append(group[0])
        if len(group) > 1:
            audit.dropped["duplicate"] += [row["id"] for row in group[1:]]
    if len(out) < len(rows) or audit.repeated:
        texts = len({(row["problem"], *row["choices"]) for row in rows})
        audit.distinct = {
            "rows": audit.rows - audit.repeated, "texts": texts, "problems": len(groups),
            "contradictory_problems": contradictory,
        }  # fmt: skip
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


def _graded(rows: list[dict[str, Any]], kind: str, label: str, source: Readable, audit: Audit) -> list[dict[str, Any]]:
    """Rows with their kind set, float golds of integers written as integers, and a tolerance of their own as a tag.

    Golds that can't be graded are an error that lists them ("error"), dropped ("drop"), or flagged and kept, where
    they grade wrong ("keep"). Rows with a known defect are flagged and kept.
    """
    from tqdm import tqdm

    bad: dict[str, str] = {}
    for row in tqdm(rows, desc=f"golds of {label}", mininterval=2, disable=len(rows) < 500):
        row["answer_kind"] = kind
        if kind == "integer":
            row["answer"] = re.sub(r"^([+-]?\d+)\.0+$", r"\1", row["answer"])
            if row["answer"] == "-1":
                audit.flagged["gold_minus_one"].append(row["id"])
        if tolerance := _relative(source.tolerances.get(row["problem_id"]), row["answer"]):
            row["tags"].append(f"tolerance:{tolerance:.6g}")
        if defect := source.defects.get(row["problem_id"]):
            row["tags"].append(f"defect:{defect}")
            audit.flagged["known_defect"].append(row["id"])
        elif reason := _unreadable(row):
            bad[row["id"]] = reason
    if not bad or source.ungradable == "keep":
        audit.flagged |= {"ungradable_gold": list(bad)} if bad else {}
        return rows
    if source.ungradable == "drop":
        audit.dropped["ungradable_gold"] += bad
        return [row for row in rows if row["id"] not in bad]
    shown = "; ".join(f"{name}: {reason}" for name, reason in list(bad.items())[:LISTED])
    more = f" (and {len(bad) - LISTED} more)" if len(bad) > LISTED else ""
    raise UserError(f"{label}: {len(bad)} of {len(rows)} golds cannot be graded as {kind}: {shown}{more}")


def _relative(error: float | None, gold: str) -> float | None:
    """An absolute error as a share of the gold; None where there is none, or the gold is no plain number but 0."""
    plain = re.fullmatch(r"\$?([+-]?\d+(?:\.\d+)?)\$?", gold.strip())
    return error / abs(float(plain[1])) if error and plain and float(plain[1]) else None


def _unreadable(row: Mapping[str, Any]) -> str:
    """Reason why no response can earn the point of this row, or "" ."""
    from tokencredit.grading import check_gold
    from tokencredit.grading.choice import choice_letter
    from tokencredit.grading.extract import last_box

    answer, kind = row["answer"], row["answer_kind"]
    if last_box(f"\\boxed{{{answer}}}").status != "ok":
        return "a brace is left open"
    if reason := check_gold(answer, kind):
        return reason
    if kind != "choice" or not row["choices"]:
        return ""
    place, options = ord(choice_letter(answer) or "A") - ord("A"), row["choices"]
    if place >= len(options):
        return f"{choice_letter(answer)} is none of {len(options)} options"
    return "the right option stands twice" if options.count(options[place]) > 1 else ""


def draw(rows: list[dict[str, Any]], size: int | None, seed: int, label: str) -> list[dict[str, Any]]:
    """`size` rows in the order of the hash of (seed, problem_id): the same ones however the file is ordered, and a
    larger draw extends a smaller one. All rows, in the file's order, for None."""
    if size is None:
        return rows
    if size > len(rows):
        raise UserError(f"{label}: {len(rows)} usable problems, the study asks for {size} (size)")
    return sorted(rows, key=lambda row: derive(seed, "draw", row["problem_id"]))[:size]

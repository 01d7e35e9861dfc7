"""Semifactual perturbations from a file: each row names its problem (by id or by text), a kind and a text.

An id is our problem_id, or the id the problem had in its own source; a problem text matches up to white space. Every
text passes the same validator as everyone's. The first valid text of a problem and kind is used; refused ones are kept
aside with the reason; rows that name no problem of the set, or a kind that the study does not make, are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tokencredit.problems.semifactuals import make, row
from tokencredit.problems.sources import READERS, as_text
from tokencredit.problems.text import problem_id
from tokencredit.problems.validator import validate
from tokencredit.study.base import expand
from tokencredit.study.errors import UserError
from tokencredit.study.origins import ImportColumns, ImportOrigin
from tokencredit.study.provenance import file_digest

Json = dict[str, Any]


def make_imported(
    problems: Sequence[Mapping[str, Any]], kinds: Sequence[str], seed: int, settings: ImportOrigin
) -> tuple[list[Json], Json]:
    """Rows of the table `semifactuals` (in the order of problems and kinds), and the counts of the file's rows.

    `problems` have problem_id, source, problem, answer. UserError: no such file, another digest, a column missing, no
    row that names a problem of the set.
    """
    path = _file(settings)
    offered, counts = _match(path, problems, kinds, settings.columns)
    if not counts["matched"]:
        raise UserError(
            f"{path}: none of its {counts['rows']} rows names one of the {len(problems)} problems by "
            f"'{settings.columns.id}' or '{settings.columns.problem}' (origin.columns), with a kind of "
            f"{', '.join(kinds)}"
        )
    rows: list[Json] = []
    for problem in tqdm(problems, desc="checking imported texts", mininterval=2, disable=len(problems) < 500):
        for kind in kinds:
            texts = offered[problem["problem_id"], kind]
            checked = _check(problem, kind, texts, settings.novelty)
            if not checked or not checked[-1]["valid"]:
                if settings.fallback == "rules":
                    checked += make([problem], [kind], seed)
                elif not checked:
                    checked = [row(problem["problem_id"], kind, "", "import", "the file has no text of this kind")]
            counts["not_needed"] += max(0, len(texts) - len(checked)) if checked[-1]["valid"] else 0
            rows += checked
    return rows, dict(counts)


def _file(settings: ImportOrigin) -> Path:
    path = Path(expand(settings.path))
    if not path.is_file():
        raise UserError(f"semifactuals.origin.path: {path}: no such file")
    if settings.sha256 and (found := file_digest(path)) != settings.sha256.lower():
        raise UserError(f"{path}: sha256 is {found}, the study asks for {settings.sha256} (semifactuals.origin.sha256)")
    if path.suffix.lstrip(".").lower() not in READERS:
        raise UserError(f"{path}: must be .jsonl, .parquet or .csv")
    return path


def _match(
    path: Path, problems: Sequence[Mapping[str, Any]], kinds: Sequence[str], columns: ImportColumns
) -> tuple[dict[tuple[str, str], list[str]], Counter[str]]:
    """Texts by (problem_id, kind) in the file's order, and counts: rows, matched, unmatched, other_kind."""
    known = _names(problems)
    offered: dict[tuple[str, str], list[str]] = defaultdict(list)
    counts: Counter[str] = Counter(rows=0, matched=0, unmatched=0, other_kind=0, not_needed=0)
    for entry in READERS[path.suffix.lstrip(".").lower()](path):
        _has_columns(entry, path, columns)
        counts["rows"] += 1
        name = known.get(as_text(entry.get(columns.id)).strip())
        if name is None and as_text(entry.get(columns.problem)).strip():
            name = known.get(problem_id(as_text(entry[columns.problem])))
        kind = as_text(entry[columns.kind]).strip()
        if name is None:
            counts["unmatched"] += 1
        elif kind not in kinds:
            counts["other_kind"] += 1
        else:
            counts["matched"] += 1
            offered[name, kind].append(as_text(entry[columns.text]))
    return offered, counts


def _names(problems: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every name of a problem -> problem_id: its id, the hash of its text, and its id in its own source if unique."""
    own = Counter(p["source"].rpartition("#")[2] for p in problems)
    known = {s: p["problem_id"] for p in problems if own[s := p["source"].rpartition("#")[2]] == 1}
    known |= {problem_id(p["problem"]): p["problem_id"] for p in problems}
    known |= {p["problem_id"]: p["problem_id"] for p in problems}
    known.pop("", None)
    return known


def _has_columns(entry: Mapping[str, Any], path: Path, columns: ImportColumns) -> None:
    lacking = [c for c in (columns.kind, columns.text) if c not in entry]
    if columns.id not in entry and columns.problem not in entry:
        lacking.append(f"{columns.id} or {columns.problem}")
    if lacking:
        raise UserError(
            f"{path}: no column {', '.join(lacking)}; the columns are {', '.join(map(str, entry))} (origin.columns)"
        )


def _check(problem: Mapping[str, Any], kind: str, texts: Sequence[str], novelty: float) -> list[Json]:
    """Rows of one problem and kind: refused texts, and the first valid one, which ends them."""
    out = []
    for text in dict.fromkeys(texts):
        reason = validate(kind, problem["problem"], text, novelty, problem["answer"])
        out.append(row(problem["problem_id"], kind, text, "import", reason))
        if not reason:
            break
    return out

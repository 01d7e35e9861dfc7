"""A problem set from its source: synthetic, read and cleaned, or made from other sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.problems import synthetic
from tokencredit.problems.cleaning import Audit, clean, draw
from tokencredit.problems.sources import read
from tokencredit.problems.variants import made
from tokencredit.study.errors import UserError
from tokencredit.study.sources import (
    FileProblems,
    HubProblems,
    MadeProblems,
    ProblemSource,
    RegistryProblems,
    SyntheticProblems,
)


@dataclass
class Loaded:
    """Rows of the table `problems`; audit: what became of the source's rows; parts: audits of what a made set is of.

    copy: whether the file is the copy that the registry knows ("known", "other"; "" where it knows none).
    """

    rows: list[dict[str, Any]]
    audit: Audit
    files: list[Path] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    copy: str = ""

    def as_json(self) -> dict[str, Any]:
        more = {"parts": self.parts, "copy": self.copy}
        return self.audit.as_json() | {k: v for k, v in more.items() if v}


def load(source: ProblemSource, seed: int, cache: Path) -> Loaded:
    """The problems of a source whose names of the registry are resolved."""
    if isinstance(source, SyntheticProblems):
        rows = synthetic.generate(source.split, source.size, seed)
        return Loaded(rows, Audit(rows=len(rows), kept=len(rows)))
    if isinstance(source, MadeProblems):
        return _made(source, seed, cache)
    if isinstance(source, RegistryProblems):
        raise UserError(f"{source.name} of the registry is not here; `tokencredit check` says what it needs")
    raw = read(source, cache)
    rows, audit = clean(raw, source, _label(source), seed)
    return Loaded(rows, audit, raw.files, copy=raw.copy)


def _label(source: Any) -> str:
    if isinstance(source, HubProblems):
        return f"{source.id}@{source.revision[:12]}"
    return Path(source.path if isinstance(source, FileProblems) else source.url).name


def _made(source: MadeProblems, seed: int, cache: Path) -> Loaded:
    parts = {name: load(part, seed, cache) for name, part in source.parts.items()}
    rows, audit = made(source.how, [(name, part.rows) for name, part in parts.items()], seed)
    rows = draw(rows, source.size, seed, source.how)
    audit.kept = len(rows)
    files = [file for part in parts.values() for file in part.files]
    return Loaded(rows, audit, files, {name: part.as_json() for name, part in parts.items()})


def without(
    rows: list[dict[str, Any]], benchmarks: Mapping[str, list[dict[str, Any]]], threshold: float, audit: Audit
) -> list[dict[str, Any]]:
    """The rows that are no problem of a benchmark; the others are listed in the audit under their benchmark."""
    from tokencredit.problems.overlap import find

    gone: set[str] = set()
    for name, asked in benchmarks.items():
        found = {o.train_id for o in find(rows, asked, threshold)}
        if found:
            audit.dropped[f"in_{name}"] += [row["source"] for row in rows if row["problem_id"] in found - gone]
        gone |= found
    return [row for row in rows if row["problem_id"] not in gone]

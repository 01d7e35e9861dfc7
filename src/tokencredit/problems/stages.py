"""The stages `problems` and `semifactuals`: a spec and files in, one table and its record out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tokencredit.problems import synthetic
from tokencredit.problems.cleaning import LISTED, Audit, clean
from tokencredit.problems.semifactuals import make
from tokencredit.problems.sources import read
from tokencredit.problems.validator import COUNTERFACTUAL
from tokencredit.study.base import parse
from tokencredit.study.config import Semifactuals
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.sources import HubProblems, ProblemSource, SyntheticProblems
from tokencredit.study.tables import read_table, write_json, write_table


def build_problems(spec: Mapping[str, Any], output: Path, record: Path) -> None:
    """Write the problem set of a spec (`source`, `seed`, `name`) as a table, and its record."""
    started = time.perf_counter()
    source = _source(spec)
    if isinstance(source, SyntheticProblems):
        rows = synthetic.generate(source.split, source.size, spec["seed"])
        audit = Audit(rows=len(rows), kept=len(rows))
        files: list[Path] = []
    else:
        raw, files = read(source, cache=output.parent / ".hub")
        label = f"{source.id}@{source.revision[:12]}" if isinstance(source, HubProblems) else files[0].name
        rows, audit = clean(raw, source, label, spec["seed"])
    if not rows:
        dropped = ", ".join(f"{reason} {len(ids)}" for reason, ids in audit.dropped.items())
        raise UserError(f"problems '{spec['name']}': none of {audit.rows} rows is usable (dropped: {dropped})")
    write_table("problems", rows, output)
    kinds = Counter(row["answer_kind"] for row in rows)
    _record(record, spec, audit.as_json() | {"answer_kinds": dict(kinds)}, files, output, started)


def _source(spec: Mapping[str, Any]) -> Any:
    try:
        return TypeAdapter(ProblemSource).validate_python(spec["source"])
    except ValidationError as error:
        raise UserError(f"problems '{spec.get('name')}': {error}") from None


def build_semifactuals(spec: Mapping[str, Any], problems: Path, output: Path, record: Path) -> None:
    """Write the perturbations of every problem of a table, and the record with their acceptance per kind."""
    from tqdm import tqdm

    started = time.perf_counter()
    settings = parse(Semifactuals, spec["semifactuals"], "spec: semifactuals")
    kinds = [*settings.kinds, *([COUNTERFACTUAL] if settings.counterfactual else [])]
    asked = read_table("problems", problems, ["problem_id", "problem"]).to_pylist()
    bar = tqdm(asked, desc="perturbing problems", mininterval=2, disable=len(asked) < 500)
    rows = make(bar, kinds, spec["seed"])
    write_table("semifactuals", rows, output)
    _record(record, spec, acceptance(rows, kinds, len(asked)), [problems], output, started)


def acceptance(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], problems: int) -> dict[str, Any]:
    """Per kind: the share of problems with a valid text, and why the others have none."""
    counts: dict[str, Any] = {"problems": problems, "rows": len(rows), "valid": sum(r["valid"] for r in rows)}
    shares, refused = {}, {}
    for kind in kinds:
        mine = [r for r in rows if r["kind"] == kind]
        shares[kind] = len({r["problem_id"] for r in mine if r["valid"]}) / max(problems, 1)
        bad = [r for r in mine if not r["valid"]]
        counts[f"invalid_{kind}"] = len(bad)
        if bad:
            refused[kind] = {
                "reasons": dict(Counter(r["reason"].partition(" (")[0] for r in bad)),
                "problem_ids": [r["problem_id"] for r in bad[:LISTED]],
            }
    covered = {r["problem_id"] for r in rows}
    for kind in set(kinds) - {COUNTERFACTUAL}:
        covered &= {r["problem_id"] for r in rows if r["kind"] == kind and r["valid"]}
    counts["problems_with_every_semifactual"] = len(covered)
    return {"counts": counts, "acceptance": shares, "refused": refused}


def _record(
    path: Path, spec: Mapping[str, Any], result: Mapping[str, Any], files: Sequence[Path], output: Path, started: float
) -> None:
    """The stage's JSON record: spec, what came out, digests of what was read and written, origin, seconds."""
    write_json(
        path,
        {
            "spec": dict(spec),
            **result,
            "digests": {"inputs": {str(f): file_digest(f) for f in files}, "output": file_digest(output)},
            "provenance": collect(files),
            "seconds": time.perf_counter() - started,
        },
    )

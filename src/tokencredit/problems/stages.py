"""The stages `problems`, `overlap` and `semifactuals`: a spec and files in, one table and its record out."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from tokencredit.problems import overlap
from tokencredit.problems.cleaning import LISTED, Audit, draw
from tokencredit.problems.imported import make_imported
from tokencredit.problems.loading import Loaded, load, without
from tokencredit.problems.semifactuals import make
from tokencredit.problems.validator import COUNTERFACTUAL
from tokencredit.study.base import parse
from tokencredit.study.config import Overlap, Semifactuals
from tokencredit.study.errors import UserError
from tokencredit.study.origins import ImportOrigin, LlmOrigin
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.sources import ProblemSource
from tokencredit.study.tables import read_table, write_json, write_table

log = logging.getLogger(__name__)


def build_problems(
    spec: Mapping[str, Any],
    output: Path,
    record: Path,
    candidates: Path | None = None,
    benchmarks: Sequence[Path] = (),
) -> None:
    """Write the problem set of a spec (`source`, `seed`, `name`) as a table, and its record.

    With `candidates` (a table `problems`), the set is drawn from those of them that are no problem of a benchmark
    (tables `problems`, each named as its benchmark); the spec then has `size` and `threshold` in the source's place.
    """
    started = time.perf_counter()
    if candidates is not None:
        rows = read_table("problems", candidates).to_pylist()
        loaded = Loaded([], Audit(rows=len(rows)), [candidates, *benchmarks])
        rows = without(rows, _named_tables(benchmarks), spec["threshold"], loaded.audit)
        loaded.rows = draw(rows, spec["size"], spec["seed"], spec["name"])
        loaded.audit.kept = len(loaded.rows)
    else:
        loaded = load(_source(spec), spec["seed"], output.parent / ".hub")
    if loaded.copy == "other":
        log.warning("%s: not the copy that the registry knows (its sha256 differs)", loaded.files[0])
    if not loaded.rows:
        dropped = ", ".join(f"{reason} {len(ids)}" for reason, ids in loaded.audit.dropped.items())
        raise UserError(f"problems '{spec['name']}': none of {loaded.audit.rows} rows is usable (dropped: {dropped})")
    write_table("problems", loaded.rows, output)
    kinds = Counter(row["answer_kind"] for row in loaded.rows)
    _record(record, spec, loaded.as_json() | {"answer_kinds": dict(kinds)}, loaded.files, output, started)


def build_overlap(
    spec: Mapping[str, Any], problems: Path, benchmarks: Sequence[Path], output: Path, record: Path
) -> None:
    """Write which training problems (a table `problems`) stand in a benchmark, and which stand in two of these."""
    started = time.perf_counter()
    settings = parse(Overlap, spec["overlap"], "spec: overlap")
    dropped = (settings.against or ()) if settings.drop else ()
    train = read_table("problems", problems).to_pylist()
    rows = overlap.table(train, _named_tables(benchmarks), settings.threshold, dropped)
    write_table("overlap", rows, output)
    _record(record, spec, overlap.summary(rows), [problems, *benchmarks], output, started)


def _named_tables(paths: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    return {path.stem: read_table("problems", path).to_pylist() for path in paths}


def _source(spec: Mapping[str, Any]) -> Any:
    try:
        return TypeAdapter(ProblemSource).validate_python(spec["source"])
    except ValidationError as error:
        raise UserError(f"problems '{spec.get('name')}': {error}") from None


def build_semifactuals(
    spec: Mapping[str, Any], problems: Path, output: Path, record: Path, state: Path | None = None
) -> None:
    """Write the perturbations of every problem of a table, and the record with their acceptance per kind.

    `state` is the folder that keeps a language model's replies (by default beside the record).
    """
    started = time.perf_counter()
    settings = parse(Semifactuals, spec["semifactuals"], "spec: semifactuals")
    kinds = [*settings.kinds, *([COUNTERFACTUAL] if settings.counterfactual else [])]
    asked = read_table("problems", problems, ["problem_id", "source", "problem", "answer"]).to_pylist()
    rows, told = _perturb(asked, kinds, spec["seed"], settings, state or record.with_name(f".{record.stem}.state"))
    write_table("semifactuals", rows, output)
    files = [problems, *map(Path, settings.files)]
    _record(record, spec, acceptance(rows, kinds, len(asked)) | told, files, output, started)


def _perturb(
    problems: Sequence[Mapping[str, Any]], kinds: Sequence[str], seed: int, settings: Semifactuals, state: Path
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows by the origin of the settings, and what its own section of the record says."""
    origin = settings.origin
    if isinstance(origin, LlmOrigin):
        from tokencredit.problems.llm import make_llm  # brings an HTTP client

        rows, told = make_llm(problems, kinds, seed, origin, state)
        return rows, {"llm": told}
    if isinstance(origin, ImportOrigin):
        rows, told = make_imported(problems, kinds, seed, origin)
        return rows, {"import": told}
    bar = tqdm(problems, desc="perturbing problems", mininterval=2, disable=len(problems) < 500)
    return make(bar, kinds, seed), {}


def acceptance(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], problems: int) -> dict[str, Any]:
    """Per kind: the share of problems with a valid text, from whom it is, and why others were refused."""
    counts: dict[str, Any] = {"problems": problems, "rows": len(rows), "valid": sum(r["valid"] for r in rows)}
    shares, refused, origins = {}, {}, {}
    for kind in kinds:
        mine = [r for r in rows if r["kind"] == kind]
        shares[kind] = len({r["problem_id"] for r in mine if r["valid"]}) / max(problems, 1)
        origins[kind] = dict(sorted(Counter(r["origin"] for r in mine if r["valid"]).items()))
        bad = [r for r in mine if not r["valid"]]
        counts[f"invalid_{kind}"] = len(bad)
        if bad:
            refused[kind] = {
                "reasons": dict(Counter(_sort_of(r["reason"]) for r in bad).most_common()),
                "problem_ids": [r["problem_id"] for r in bad[:LISTED]],
            }
    covered = {r["problem_id"] for r in rows}
    for kind in set(kinds) - {COUNTERFACTUAL}:
        covered &= {r["problem_id"] for r in rows if r["kind"] == kind and r["valid"]}
    counts["problems_with_every_semifactual"] = len(covered)
    return {"counts": counts, "acceptance": shares, "origins": origins, "refused": refused}


def _sort_of(reason: str) -> str:
    """A reason without its particulars, so that equal ones can be counted.

    >>> _sort_of("number changed: 12 -> 13"), _sort_of("2 words changed, not one")
    ('number changed', 'N words changed, not one')
    """
    return re.sub(r"\d+", "N", re.split(r": | \(", reason, maxsplit=1)[0])


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

"""The registry of public sets as a table: what each set is, whether it is to be had here, and what loading it gives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from tokencredit.problems.loading import load
from tokencredit.study.errors import UserError
from tokencredit.study.registry import Entry, Missing, Registry, entries, file_names, nearest, published, resolve
from tokencredit.study.sources import FileProblems, MadeProblems, RegistryProblems

PAGE = """# Benchmarks and training sets

Made by `make docs` from `src/tokencredit/study/registry.yaml`; do not edit. `tokencredit benchmarks` prints which of
them are to be had where it is called, and `tokencredit benchmarks --check` loads those that lie in the folder and
checks them.

A study names a set: `benchmarks: {aime_2024: {}}` is enough where the entry has the set's name, and
`source: {kind: registry, name: aime_2024}` where it has another one. Samples, tolerance and label are the registry's
unless the study says otherwise. Where sets come from is one setting:

```yaml
registry:
  folder: ${TOKENCREDIT_SHARED}/data   # files named as below, or NAME.jsonl, NAME.parquet, NAME.csv
  order: [folder, hub]                 # the folder first; what it lacks, from the hub by pinned revision
  protocol: scapo                      # whose samples per problem: scapo or mcpo
```

A file may have the hub's columns or `id`, `problem`, `answer`. After loading, the number of rows, distinct ids and
readable golds are checked; what is dropped or flagged is counted and listed in the record beside the table. Several
licences forbid passing the texts on: none is part of this repository.
"""


def available(name: str, place: Registry) -> str:
    """Where the set is found. Raises Missing."""
    source = resolve(RegistryProblems(kind="registry", name=name), place)
    if isinstance(source, FileProblems):
        return Path(source.path).name
    return "made from its parts" if isinstance(source, MadeProblems) else "from the net"


def listing(folder: str) -> Iterator[str]:
    """Lines of the table that `tokencredit benchmarks` prints, and below it what the missing sets need."""
    place = Registry(folder=folder)
    rows: list[tuple[str, ...]] = [("set", "rows", "answer", "mcpo", "scapo", "licence", "here")]
    needs = []
    for name, entry in entries().items():
        try:
            here = available(name, place)
        except Missing as error:
            here = "missing"
            needs.append(f"  {error}" if str(error).startswith(name) else f"  {name}: {error}")
        rows.append((*_facts(name, entry), here))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from ["", "What is missing:", *needs] if needs else []


def _facts(name: str, entry: Entry) -> tuple[str, ...]:
    answer = entry.answer + (f" ±{entry.tolerance:g}" if entry.tolerance else "")
    samples = (str(entry.samples.get(p, "-")) for p in ("mcpo", "scapo"))
    return name, str(entry.rows), answer, *samples, entry.licence


def checked(folder: str, names: Sequence[str] = ()) -> Iterator[str]:
    """Load every set that needs no network, one line each. Raises UserError at the end if any does not load."""
    place, failed = Registry(folder=folder), []
    for name in names:
        if name not in entries():
            raise UserError(f"no set of the registry is named '{name}'{nearest(name)}")
    for name in tqdm(names or list(entries()), desc="checking sets", unit="set"):
        try:
            source = resolve(RegistryProblems(kind="registry", name=name), place)
            if not isinstance(source, FileProblems | MadeProblems):
                continue
            with tempfile.TemporaryDirectory() as cache:
                loaded = load(source, 0, Path(cache))
        except Missing as error:
            if names:
                yield str(error)
            continue
        except UserError as error:
            failed.append(name)
            yield f"{name}: FAILED: {error}"
            continue
        counts = ", ".join(f"{k} {v}" for k, v in loaded.as_json()["counts"].items())
        other = "; not the known copy" if loaded.copy == "other" else ""
        wanted = entries()[name].usable or entries()[name].rows
        short = f"; {wanted} expected" if len(loaded.rows) != wanted else ""
        yield f"{name}: {counts}{other}{short}"
    if failed:
        raise UserError(f"sets that did not load: {', '.join(failed)}")


def page() -> str:
    """docs/benchmarks.md."""
    head = [
        "set",
        "what",
        "source",
        "file",
        "rows",
        "usable",
        "answer",
        "samples (mcpo / scapo)",
        "published",
        "licence",
    ]
    lines = [PAGE, "| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    notes = ["", "## Known defects and remarks", ""]
    for name, entry in entries().items():
        _, rows, answer, *samples, licence = _facts(name, entry)
        cells = [
            f"`{name}`", entry.title, _origin(entry), f"`{file_names(name)[0]}`", rows, str(entry.usable or entry.rows),
            answer, " / ".join(samples), _months(name), licence,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
        defects = "; ".join(f"`{key}`: {what}" for key, what in entry.defects.items())
        if entry.notes or defects:
            remarks = [f"{entry.notes}." if entry.notes else "", f"Rows by problem_id: {defects}." if defects else ""]
            notes.append(f"* `{name}`: {' '.join(r for r in remarks if r)}")
    return "\n".join([*lines, *notes, ""])


def _months(name: str) -> str:
    """'2025-02', '2024-02 to 2026-02', or 'not known'."""
    months = published(name)
    return " to ".join(dict.fromkeys([min(months), max(months)])) if months else "not known"


def _origin(entry: Entry) -> str:
    if entry.made is not None:
        return f"{entry.made.how} of {', '.join(f'`{name}`' for name in entry.made.of)}"
    if entry.hub is None:
        return f"[commit]({entry.url})" if entry.url else "file only"
    hub = entry.hub
    where = f"{hub.id}, {hub.config} / {hub.split}"
    return f"{where}, {f'`{hub.revision[:12]}`' if hub.revision else 'no revision pinned'}" + (
        ", gated" if hub.gated else ""
    )

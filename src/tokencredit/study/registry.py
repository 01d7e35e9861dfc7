"""The registry of public sets (registry.yaml), and where a study finds them: files in a folder, the hub, or both.

A study names a set (`source: {kind: registry, name: aime_2024}`, or a benchmark of that name without a source);
`resolve` turns the name into a file, hub or made source that says everything its stage depends on, so that the spec
does too. Nothing is opened or fetched here: only whether files are there is looked at.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from tokencredit.study.base import Months, Name, Settings, Strings, expand, parse
from tokencredit.study.errors import UserError
from tokencredit.study.sources import (
    AnswerKind,
    FileProblems,
    HubProblems,
    Layout,
    Made,
    MadeProblems,
    ProblemSource,
    RegistryProblems,
    UrlProblems,
)

Positive = Annotated[int, Field(ge=1)]
SUFFIXES = ("jsonl", "parquet", "csv")


class Missing(UserError):
    """A set that cannot be had here: says which file, login or setting it needs."""


class Registry(Settings):
    """Where the sets of the registry are looked for, and how often they are sampled where a benchmark does not say.

    order: a folder with files named as the registry says, the hub (by pinned revision), or one after the other.
    """

    folder: str = "${TOKENCREDIT_SHARED}/data"
    order: Annotated[tuple[Literal["folder", "hub"], ...], Field(strict=False, min_length=1)] = ("folder",)
    protocol: Literal["mcpo", "scapo"] = "scapo"


class Hub(Settings):
    id: str
    config: str = "default"
    split: str = "train"
    revision: str = ""  # empty: none is known, the study has to give one
    gated: bool = False


class Recipe(Settings):
    """A set made from others of the registry."""

    how: Made
    of: Strings


class Entry(Settings):
    """One set. rows: as loaded; usable: after cleaning, where that differs; samples: per problem, by protocol."""

    title: str
    role: Literal["train", "benchmark"] = "benchmark"
    published: Months = ()
    hub: Hub | None = None
    url: str = ""
    files: Strings = ()  # names beside NAME.jsonl, NAME.parquet, NAME.csv
    sha256: str = ""  # of the known local copy
    made: Recipe | None = None
    layouts: Annotated[tuple[Layout, ...], Field(strict=False)] = (Layout(),)
    rows: Positive
    usable: Positive | None = None
    answer: AnswerKind
    tolerance: Annotated[float, Field(gt=0)] | None = None
    orders: Annotated[int, Field(ge=1, le=24)] = 1
    licence: str
    samples: dict[str, Positive] = Field(default_factory=dict)
    defects: dict[str, str] = Field(default_factory=dict)  # problem_id -> what is wrong with the row
    tolerances: dict[str, float] = Field(default_factory=dict)  # problem_id -> absolute error its gold allows
    notes: str = ""


class _Table(Settings):
    sets: dict[Name, Entry]


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Name -> entry, in the file's order."""
    text = resources.files("tokencredit.study").joinpath("registry.yaml").read_text(encoding="utf-8")
    return parse(_Table, {"sets": yaml.safe_load(text)}, "registry.yaml").sets


def nearest(name: str) -> str:
    """ "; did you mean 'aime_2024'?" or "" ."""
    close = difflib.get_close_matches(name, entries(), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else "; `tokencredit benchmarks` lists them"


def filled(values: Any) -> Any:
    """The study's settings with every benchmark of the registry spelled out: source, samples, tolerance, label.

    Values that are no settings at all pass unchanged; the validation after this says what is wrong with them.
    """
    if not isinstance(values, Mapping) or not isinstance(values.get("benchmarks"), Mapping):
        return values
    place = values.get("registry")
    protocol = place.get("protocol", Registry().protocol) if isinstance(place, Mapping) else Registry().protocol
    return {**values, "benchmarks": {n: _filled(n, b, protocol) for n, b in values["benchmarks"].items()}}


def _filled(name: str, benchmark: Any, protocol: str) -> Any:
    benchmark = {} if benchmark is None else benchmark
    if not isinstance(benchmark, Mapping):
        return benchmark
    if "source" not in benchmark and name in entries():
        benchmark = {**benchmark, "source": {"kind": "registry", "name": name}}
    source = benchmark.get("source")
    entry = entries().get(source.get("name", "")) if isinstance(source, Mapping) and _named(source) else None
    if entry is None:
        return benchmark
    known: dict[str, Any] = {"label": entry.title, "tolerance": entry.tolerance, "samples": entry.samples.get(protocol)}
    known["published"] = list(published(source["name"])) or None
    return {k: v for k, v in known.items() if v is not None} | dict(benchmark)


def published(name: str) -> tuple[str, ...]:
    """Months in which a set's problems were first public, those of its parts for a set made of others; () not known."""
    entry = entries()[name]
    if entry.published or entry.made is None:
        return entry.published
    parts = [published(part) for part in entry.made.of]
    return tuple(sorted({month for part in parts for month in part})) if all(parts) else ()


def _named(source: Mapping[str, Any]) -> bool:
    return source.get("kind") == "registry" and isinstance(source.get("name"), str)


# ---- where a set is --------------------------------------------------------------------------------


def resolve(source: ProblemSource, place: Registry) -> ProblemSource:
    """The source with every name of the registry replaced by a file, address or hub set. Raises Missing."""
    if isinstance(source, MadeProblems):
        return source.model_copy(update={"parts": {n: resolve(part, place) for n, part in source.parts.items()}})
    if not isinstance(source, RegistryProblems):
        return source
    entry = entries()[source.name]
    if source.path:
        return _file(source, entry, source.path)
    for where in place.order:
        found = _in_folder(source, entry, place) if where == "folder" else _remote(source, entry)
        if found is not None:
            return found
    if entry.made is not None:
        parts = {n: RegistryProblems(kind="registry", name=n) for n in entry.made.of}
        return resolve(MadeProblems(kind="made", how=entry.made.how, parts=dict(parts), size=source.size), place)
    raise Missing(f"{source.name} is not here: {'; '.join(_needs(source, entry, place))}")


def local_files(source: ProblemSource, key: str = "path") -> dict[str, str]:
    """Setting (`path`, or `parts.NAME.path`) -> local file, of a resolved source."""
    if isinstance(source, MadeProblems):
        parts = (local_files(part, f"parts.{name}.{key}") for name, part in source.parts.items())
        return {k: path for part in parts for k, path in part.items()}
    return {key: expand(source.path)} if isinstance(source, FileProblems) else {}


def file_names(name: str) -> list[str]:
    """Names under which a folder may hold the set, the known copy's first."""
    return list(dict.fromkeys([*entries()[name].files, *(f"{name}.{suffix}" for suffix in SUFFIXES)]))


def _in_folder(source: RegistryProblems, entry: Entry, place: Registry) -> FileProblems | None:
    for name in file_names(source.name):
        path = f"{place.folder}/{name}"
        if Path(expand(path)).is_file():
            return _file(source, entry, path)
    return None


def _file(source: RegistryProblems, entry: Entry, path: str) -> FileProblems:
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in SUFFIXES:
        raise UserError(f"{source.name}: {path} must end in .{', .'.join(SUFFIXES)}")
    known = {"sha256": source.sha256, "known_sha256": entry.sha256}
    return FileProblems.model_validate({"kind": kind, "path": path, **known, **_common(source, entry)})


def _remote(source: RegistryProblems, entry: Entry) -> HubProblems | UrlProblems | None:
    if entry.url:
        return UrlProblems(kind="url", url=entry.url, **_common(source, entry))
    hub = entry.hub
    revision = source.revision or (hub.revision if hub else "")
    if hub is None or not revision or (hub.gated and not logged_in()):
        return None
    return HubProblems(
        kind="hub", id=hub.id, config=hub.config, split=hub.split, revision=revision, **_common(source, entry)
    )


def _common(source: RegistryProblems, entry: Entry) -> dict[str, Any]:
    """What the entry says about its rows. A set with one count of rows has it in `expect_rows`, others by layout."""
    counted = any(layout.rows for layout in entry.layouts)
    layouts = entry.layouts
    if source.expect_rows:
        layouts = tuple(layout.model_copy(update={"rows": ()}) for layout in layouts)
    return {
        "layouts": layouts,
        "answer_kind": entry.answer,
        "size": source.size,
        "expect_rows": source.expect_rows or (None if counted else entry.rows),
        "unique_ids": True,
        "language": source.language,
        "defects": entry.defects,
        "tolerances": entry.tolerances,
        "orders": entry.orders,
    }


def logged_in() -> bool:
    """Whether a token for gated sets of the hub is at hand."""
    home = Path(os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface")))
    return bool(os.environ.get("HF_TOKEN")) or (home / "token").is_file()


def _needs(source: RegistryProblems, entry: Entry, place: Registry) -> Iterator[str]:
    """What would make the set available, one remedy after another."""
    hub, folder = entry.hub, expand(place.folder)
    yield f"put {file_names(source.name)[0]} ({entry.rows} rows) into {folder} (registry.folder)"
    steps = [] if "hub" in place.order else ["set registry.order: [folder, hub]"]
    if hub is not None and hub.gated and not logged_in():
        steps.append("log in with HF_TOKEN, since the set is gated and has to be asked for")
    if hub is not None and not (source.revision or hub.revision):
        steps.append("name a commit of it in source.revision")
    if entry.url or hub is not None:
        yield f"or to take {hub.id if hub else entry.url} from the net, {' and '.join(steps)}"

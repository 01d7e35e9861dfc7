"""Raw rows of a problem set, from a local file, an address or the Hugging Face hub (through `datasets`).

Every value becomes text on the way in, as it is written: an integer beyond int64, "073", a date and 27.0 all
survive (the libraries' own readers turn them into floats, errors or timestamps). A column may be

    name                  a column
    a.b, a.0.b            a field inside a column: `reward_model.ground_truth`, `prompt.0.content`
    name|boxed            the content of the last \\boxed{} in it
    name|hashes           what follows the last #### in it

Rows are read one by one, and rows that repeat another in everything are only counted, so that a set that holds one
block a hundred times over costs one block. The net is asked only where the study names it, for a fixed version. Files
go to HF_HOME where that is set, else to the cache folder of the stage; nothing depends on HOME.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tokencredit.study.base import expand
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import file_digest
from tokencredit.study.sources import Columns, FileProblems, HubProblems, Layout, UrlProblems

Readable = FileProblems | HubProblems | UrlProblems
# optional columns that become tags ("level:5"), besides `choices` and `tags`, which are lists
TAGGED = ("level", "subject", "difficulty", "domain", "type")


@dataclass
class Raw:
    """Rows as read: dicts with the texts id, problem, answer and the lists choices, tags.

    layout: the form the set turned out to have; read: rows of the source, repeated: those of them that say the same
    as one before; files: local files read; copy: "known" or "other" than the copy the registry knows, "" where it
    knows none.
    """

    layout: Layout
    rows: list[dict[str, Any]] = field(default_factory=list)
    read: int = 0
    repeated: int = 0
    files: list[Path] = field(default_factory=list)
    copy: str = ""


def read(source: Readable, cache: Path) -> Raw:
    """All distinct rows of a source.

    Raises UserError for whatever the user can mend: a missing or changed file, a wrong column, an unreachable hub.
    """
    if isinstance(source, HubProblems):
        return _mapped(_hub(source, cache), source, _name(source))
    if isinstance(source, UrlProblems):
        path = _fetched(source, cache)
        _check_digest(path, source.sha256)
        return _mapped(_reader(source.url, source.url)(path), source, source.url)
    path = Path(expand(source.path))
    if not path.is_file():
        raise UserError(f"{path}: no such file (from path '{source.path}'); put it there, or set the variable it names")
    _check_digest(path, source.sha256)
    raw = _mapped(READERS[source.kind](path), source, path.name)
    raw.files = [path]
    if source.known_sha256:
        raw.copy = "known" if file_digest(path) == source.known_sha256 else "other"
    return raw


def _check_digest(path: Path, wanted: str) -> None:
    if wanted and (found := file_digest(path)) != wanted.lower():
        raise UserError(
            f"{path}: sha256 is {found}, the study asks for {wanted}; get the right version, or change the study"
        )


# ---- columns ---------------------------------------------------------------------------------------


def _mapped(rows: Iterable[Mapping[str, Any]], source: Readable, name: str) -> Raw:
    """The rows with their columns named as ours, each distinct one once."""
    raw: Raw | None = None
    seen: set[tuple[Any, ...]] = set()
    for i, row in enumerate(tqdm(rows, desc=f"reading {name}", mininterval=2, unit="row", delay=2)):
        raw = raw or Raw(_layout(row, source))
        raw.read += 1
        one = _row_of(row, raw.layout, i, name)
        key = (one["id"], one["problem"], one["answer"], *one["choices"])
        if key in seen:
            raw.repeated += 1
        else:
            seen.add(key)
            raw.rows.append(one)
    if raw is None:
        raise UserError(f"{name}: no rows")
    return raw


def _layout(row: Mapping[str, Any], source: Readable) -> Layout:
    """The first layout whose columns the row has; else the source's own columns, or the first layout, to be refused."""
    own = Layout(**source.columns.model_dump(), strip_prefix=source.strip_prefix, strip_suffix=source.strip_suffix)
    layouts = source.layouts or (own,)
    return next((layout for layout in layouts if _has(row, layout)), layouts[0])


def _has(row: Mapping[str, Any], layout: Layout) -> bool:
    try:
        return all(_value(row, c) is not None for c in (layout.problem, layout.answer, *layout.wrong)) and not (
            isinstance(_value(row, layout.problem), list | dict)
        )
    except LookupError:
        return False


def _row_of(row: Mapping[str, Any], columns: Columns, i: int, name: str) -> dict[str, Any]:
    answer, wrong = _pick(row, columns.answer, "answer", name), [_pick(row, c, "wrong", name) for c in columns.wrong]
    try:
        known = as_text(_value(row, columns.id))
    except LookupError:
        known = as_text(row.get("id"))
    return {
        "id": known or str(i),
        "problem": _pick(row, columns.problem, "problem", name),
        "answer": "A" if wrong else answer,
        "choices": [answer.strip(), *(w.strip() for w in wrong)] if wrong else _strings(row.get("choices")),
        "tags": [*_strings(row.get("tags")), *(f"{k}:{as_text(row[k])}" for k in TAGGED if _scalar(row.get(k)))],
    }


def _value(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column, or inside it. Raises LookupError where it isn't there."""
    path = column.partition("|")[0]
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list | tuple) else value[part]
        except (ValueError, TypeError) as error:
            raise LookupError(column) from error
    return value


def _pick(row: Mapping[str, Any], column: str, what: str, name: str) -> str:
    try:
        value = _value(row, column)
    except LookupError:
        raise UserError(
            f"{name}: no column '{column}' for the {what}; the columns are {', '.join(map(str, row))} "
            f"(set columns.{what})"
        ) from None
    return _filter(as_text(value), column.partition("|")[2], name)


def _filter(text: str, filtered: str, name: str) -> str:
    if not filtered:
        return text
    if filtered == "boxed":
        from tokencredit.grading.extract import last_box

        return last_box(text).text
    if filtered == "hashes":
        return text.rpartition("####")[2].strip()
    raise UserError(f"{name}: unknown column filter '|{filtered}'; choose from |boxed, |hashes")


def as_text(value: Any) -> str:
    """A value as the text it was written as; lists are joined by commas, missing values are empty.

    >>> as_text(27.0), as_text(None), as_text([3, 4]), as_text(True)
    ('27.0', '', '3, 4', 'true')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return ", ".join(as_text(v) for v in value)
    return str(value)


def _strings(value: Any) -> list[str]:
    return [as_text(v) for v in value] if isinstance(value, list | tuple) else []


def _scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and as_text(value).strip() != ""


# ---- local files -----------------------------------------------------------------------------------


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file (or of a file holding one JSON list); numbers stay the text they are."""
    with open(path, encoding="utf-8-sig") as handle:
        if handle.read(64).lstrip().startswith("["):
            handle.seek(0)
            rows = _loads(handle.read(), f"{path}")
            yield from (_row(row, f"{path}, entry {i + 1}") for i, row in enumerate(rows))
            return
        handle.seek(0)
        for number, line in enumerate(handle, start=1):
            if line.strip():
                yield _row(_loads(line, f"{path}, line {number}"), f"{path}, line {number}")


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None


def _row(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be an object with the columns of a problem, not {type(value).__name__}")
    return value


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file, a batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error}); get it again") from error


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", newline="") as handle:
        yield from csv.DictReader(handle)


READERS = {"json": _jsonl, "jsonl": _jsonl, "ndjson": _jsonl, "parquet": _parquet, "csv": _csv}


def _reader(file: str, name: str) -> Any:
    suffixes = [s.lstrip(".") for s in Path(file.split("::")[-1]).suffixes]
    for suffix in reversed(suffixes):
        if suffix in READERS:
            return READERS[suffix]
    raise UserError(f"{name}: file {file} is neither JSON, CSV nor Parquet; convert it, and use a local file")


# ---- the net ---------------------------------------------------------------------------------------


def _name(source: HubProblems) -> str:
    return f"{source.id} ({source.config}, {source.split}, revision {source.revision})"


def _hub(source: HubProblems, cache: Path) -> Iterator[dict[str, Any]]:
    """Rows of one split of a hub data set: its files are resolved and fetched by `datasets`, and read as above."""
    datasets, name = _datasets(cache), _name(source)
    where = {"revision": source.revision} if not Path(source.id).is_dir() else {}
    try:
        builder = datasets.load_dataset_builder(source.id, source.config, cache_dir=str(cache), **where)
        files = _files_of(builder, source.split, name)
        fetched = _manager(datasets, cache).download_and_extract(files)
    except UserError:
        raise
    except Exception as error:  # the hub's errors have no common base: offline, gated, gone, renamed, no such split
        raise UserError(
            f"{name}: cannot be fetched from the hub ({type(error).__name__}: {_first_line(error)}). Check id, "
            f"revision and network (HF_HUB_OFFLINE={os.environ.get('HF_HUB_OFFLINE', '')!r}); for a gated set give "
            f"HF_TOKEN; or use a local copy (kind: jsonl or parquet, path: ...)"
        ) from error
    for file, local in zip(files, fetched, strict=True):
        yield from _reader(file, name)(Path(local))


def _fetched(source: UrlProblems, cache: Path) -> Path:
    try:
        return Path(_manager(_datasets(cache), cache).download(source.url))
    except Exception as error:  # as above
        raise UserError(
            f"{source.url}: cannot be fetched ({type(error).__name__}: {_first_line(error)}). Check the network, "
            f"or use a local copy (kind: jsonl, path: ...)"
        ) from error


def _datasets(cache: Path) -> Any:
    # huggingface_hub reads its folders from the environment once, when imported; a login stays where it was made
    if "huggingface_hub" not in sys.modules and "HF_HOME" not in os.environ:
        os.environ.setdefault("HF_TOKEN_PATH", os.path.expanduser("~/.cache/huggingface/token"))
        os.environ["HF_HOME"] = str(cache.resolve())
    import datasets

    return datasets


def _manager(datasets: Any, cache: Path) -> Any:
    return datasets.DownloadManager(download_config=datasets.DownloadConfig(cache_dir=str(cache / "downloads")))


def _files_of(builder: Any, split: str, name: str) -> list[str]:
    files = builder.config.data_files or {}
    if split not in files:
        raise UserError(f"{name}: no split '{split}'; it has {', '.join(map(str, files)) or 'none'}")
    return [str(f) for f in files[split]]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0][:200]

"""Raw rows of a problem set, from the generator, a local file or the Hugging Face hub, through `datasets`.

Every value becomes text on the way in, as it is written: an integer beyond int64, "073", a date and 27.0 all
survive (the libraries' own readers turn them into floats, errors or timestamps). A column may be

    name                  a column
    a.b, a.0.b            a field inside a column: `reward_model.ground_truth`, `prompt.0.content`
    name|boxed            the content of the last \\boxed{} in it
    name|hashes           what follows the last #### in it

The hub is asked only where the study names it (`kind: hub`), by revision. Files go to HF_HOME where that is set,
else to the cache folder of the stage; nothing depends on HOME.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.study.base import expand
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import file_digest
from tokencredit.study.sources import Columns, FileProblems, HubProblems

if TYPE_CHECKING:
    from datasets import Dataset

# optional columns that become tags ("level:5"), besides `choices` and `tags`, which are lists
TAGGED = ("level", "subject", "difficulty", "domain", "type")


def read(source: FileProblems | HubProblems, cache: Path) -> tuple[Dataset, list[Path]]:
    """Rows with the string columns id, problem, answer and the lists choices, tags; and the local files read.

    Raises UserError for whatever the user can mend: a missing or changed file, a wrong column, an unreachable hub.
    """
    if isinstance(source, HubProblems):
        return _hub(source, cache), []
    path = Path(expand(source.path))
    if not path.is_file():
        raise UserError(f"{path}: no such file (from path '{source.path}'); put it there, or set the variable it names")
    if source.sha256 and (found := file_digest(path)) != source.sha256.lower():
        raise UserError(
            f"{path}: sha256 is {found}, the study asks for {source.sha256}; get the right version, or change the study"
        )
    rows = _jsonl(path) if source.kind == "jsonl" else _parquet(path)
    return _dataset(rows, source.columns, path.name), [path]


# ---- columns ---------------------------------------------------------------------------------------


def _dataset(rows: Iterable[Mapping[str, Any]], columns: Columns, name: str) -> Dataset:
    """The mapped rows as a data set in memory, with explicit text features (nothing left to inference)."""
    from datasets import Dataset, Features, Value
    from datasets import List as ListOf

    texts, lists = Value("string"), ListOf(Value("string"))
    features = Features({"id": texts, "problem": texts, "answer": texts, "choices": lists, "tags": lists})
    mapped: list[dict[str, Any]] = []
    for i, row in enumerate(rows):
        mapped.append(
            {
                "id": as_text(row.get(columns.id, i)),
                "problem": _pick(row, columns.problem, "problem", name),
                "answer": _pick(row, columns.answer, "answer", name),
                "choices": _strings(row.get("choices")),
                "tags": [
                    *_strings(row.get("tags")),
                    *(f"{k}:{as_text(row[k])}" for k in TAGGED if _scalar(row.get(k))),
                ],
            }
        )
    if not mapped:
        raise UserError(f"{name}: no rows")
    return Dataset.from_list(mapped, features=features)


def _pick(row: Mapping[str, Any], column: str, what: str, name: str) -> str:
    path, _, filtered = column.partition("|")
    value: Any = row.get(path, row)
    for part in [] if path in row else path.split("."):
        try:
            value = value[int(part)] if isinstance(value, Sequence) and not isinstance(value, str) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise UserError(
                f"{name}: no column '{column}' for the {what}; the columns are {', '.join(map(str, row))} "
                f"(set columns.{what})"
            ) from None
    return _filter(as_text(value), filtered, name)


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
    """Rows of a Parquet file. The reader's cache is a temporary folder that is gone afterwards."""
    from datasets import Dataset

    with tempfile.TemporaryDirectory() as cache:
        try:
            rows = Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
        except Exception as error:  # datasets wraps whatever the file does to it in errors of its own
            reason = error.__cause__ or error
            raise UserError(f"{path}: cannot be read as Parquet ({reason}); get it again") from error
        assert isinstance(rows, Dataset)
        yield from (dict(row) for row in rows)


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8-sig", newline="") as handle:
        yield from csv.DictReader(handle)


READERS = {"json": _jsonl, "jsonl": _jsonl, "ndjson": _jsonl, "parquet": _parquet, "csv": _csv}


# ---- the hub ---------------------------------------------------------------------------------------


def _hub(source: HubProblems, cache: Path) -> Dataset:
    """Rows of one split of a hub data set: its files are resolved and fetched by `datasets`, and read as above."""
    if "huggingface_hub" not in sys.modules:  # it reads its folders from the environment once, when imported
        os.environ.setdefault("HF_HOME", str(cache.resolve()))
    import datasets

    name = f"{source.id} ({source.config}, {source.split}, revision {source.revision})"
    where = {"revision": source.revision} if not Path(source.id).is_dir() else {}
    try:
        builder = datasets.load_dataset_builder(source.id, source.config, cache_dir=str(cache), **where)
        files = _files_of(builder, source.split, name)
        fetched = datasets.DownloadManager(
            download_config=datasets.DownloadConfig(cache_dir=str(cache / "downloads"))
        ).download_and_extract(files)
    except UserError:
        raise
    except Exception as error:  # the hub's errors have no common base: offline, gated, gone, renamed, no such split
        raise UserError(
            f"{name}: cannot be fetched from the hub ({type(error).__name__}: {_first_line(error)}). Check id, "
            f"revision and network (HF_HUB_OFFLINE={os.environ.get('HF_HUB_OFFLINE', '')!r}); for a gated set give "
            f"HF_TOKEN; or use a local copy (kind: jsonl or parquet, path: ...)"
        ) from error
    rows = (row for file, local in zip(files, fetched, strict=True) for row in _reader(file, name)(Path(local)))
    return _dataset(rows, source.columns, name)


def _files_of(builder: Any, split: str, name: str) -> list[str]:
    files = builder.config.data_files or {}
    if split not in files:
        raise UserError(f"{name}: no split '{split}'; it has {', '.join(map(str, files)) or 'none'}")
    return [str(f) for f in files[split]]


def _reader(file: str, name: str) -> Any:
    suffixes = [s.lstrip(".") for s in Path(file.split("::")[-1]).suffixes]
    for suffix in reversed(suffixes):
        if suffix in READERS:
            return READERS[suffix]
    raise UserError(f"{name}: file {file} is neither JSON, CSV nor Parquet; convert it, and use a local file")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0][:200]

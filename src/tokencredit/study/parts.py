"""Work done part by part, so that a stopped job goes on: a finished part is a file, a damaged one is done again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
from tqdm import tqdm

from tokencredit.study.tables import TableError, read_json, read_table, write_json, write_table

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Part = TypeVar("Part")
Progress = Callable[[int], object]


def chunked(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """`size` items at a time, in order; the last chunk may be smaller."""
    return [items[start : start + size] for start in range(0, len(items), size)]


class Parts(Generic[Part]):
    """Finished parts of a job, under one folder. `resumed` counts those that were found there."""

    def __init__(
        self,
        folder: Path,
        suffix: str,
        write: Callable[[Any, Path], object],
        read: Callable[[Path], Part],
        fits: Callable[[Part, Sequence[Any]], bool],
    ):
        self.folder, self.suffix, self.write, self.read, self.fits = folder, suffix, write, read, fits
        self.resumed = 0

    def run(
        self,
        chunks: Sequence[Sequence[Item]],
        work: Callable[[Sequence[Item], Progress], Any],
        label: str,
        unit: str,
        name: str = "part",
    ) -> list[Part]:
        """`work(chunk, progress)` for every chunk that has no part yet; all parts, in the chunks' order.

        Parts are the same whenever and however often the job was stopped, as long as `folder` stands for the same
        items and settings.
        """
        parts, done = [], 0
        with tqdm(total=sum(map(len, chunks)), desc=label, unit=unit, mininterval=2) as bar:
            for number, chunk in enumerate(chunks):
                path = self.folder / f"{name}-{number:05d}{self.suffix}"
                part = self._finished(path, chunk)
                if part is None:
                    self.write(work(chunk, bar.update), path)
                    part = self.read(path)
                done += len(chunk)
                bar.update(done - bar.n)
                parts.append(part)
        return parts

    def _finished(self, path: Path, chunk: Sequence[Any]) -> Part | None:
        if not path.exists():
            return None
        try:
            part = self.read(path)
        except TableError as error:
            log.warning("%s; this part is done again", error)
            return None
        if not self.fits(part, chunk):
            return None
        self.resumed += 1
        return part


def _as_many_rows(table: pa.Table, chunk: Sequence[Any]) -> bool:
    return bool(table.num_rows == len(chunk))


def table_parts(
    table: str, folder: Path, fits: Callable[[pa.Table, Sequence[Any]], bool] = _as_many_rows
) -> Parts[pa.Table]:
    """Parts whose work returns rows of `table` (study/tables.py); as many as it was given items, unless `fits` says."""
    return Parts(
        folder, ".parquet", lambda rows, path: write_table(table, rows, path), lambda p: read_table(table, p), fits
    )


def row_parts(folder: Path) -> Parts[dict[str, Any]]:
    """Parts whose work returns an object with `rows`, one for each item, beside what else it has to say."""
    return Parts(folder, ".json", lambda part, p: write_json(p, part), read_json, lambda p, c: len(p["rows"]) == len(c))

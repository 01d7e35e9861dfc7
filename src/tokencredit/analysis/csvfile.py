"""Small CSV tables with deterministic bytes: fixed columns, sorted rows, one number format, LF line ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.study.errors import UserError
from tokencredit.study.tables import write_text


def cell(value: Any) -> str:
    """Text of one value: ten significant digits for floats, empty for None (missing) and non-finite values.

    >>> cell(0.1 + 0.2), cell(7), cell(None), cell(float("nan")), cell(-0.0)
    ('0.3', '7', '', '', '0')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return ""
        return format(value + 0.0, ".10g") if value else "0"
    return str(value)


def write_csv(path: Path | str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], keys: int) -> Path:
    """Write rows sorted by their first `keys` columns (numbers by value). Every row has exactly `columns`."""
    ordered = sorted(rows, key=lambda row: tuple(row[c] for c in columns[:keys]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in ordered:
        if row.keys() != set(columns):
            raise KeyError(f"{path}: columns {sorted(row.keys() ^ set(columns))} missing or unknown")
        writer.writerow([cell(row[c]) for c in columns])
    return write_text(path, text.getvalue())


def read_csv(path: Path | str) -> list[dict[str, str]]:
    """Rows of a CSV file as text. UserError where it does not exist."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file; run the aggregate stage first")
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def number(text: str | None) -> float | None:
    """The number a cell holds; None for a missing one.

    >>> number("0.5"), number(""), number(None)
    (0.5, None, None)
    """
    return float(text) if text else None

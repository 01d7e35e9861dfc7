"""Rows of the aggregate files as the sections on gain and length ask for them; shares become points of a percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import number, read_csv
from tokencredit.reporting.text import fixed, signed

Row = Mapping[str, str]


def table(path: Path, **wanted: str) -> list[Row]:
    """Rows of a file whose columns have these texts, in the file's order."""
    return [r for r in read_csv(path) if all(r[k] == v for k, v in wanted.items())]


def span(row: Row, low: str = "low", high: str = "high", digits: int = 1, scale: float = 100.0) -> str:
    """'−0.2 to +8.8'; empty where there is no interval."""
    a, b = number(row[low]), number(row[high])
    return "" if a is None or b is None else f"{signed(a, digits, scale)} to {signed(b, digits, scale)}"


def sure(row: Row, low: str = "low", high: str = "high") -> bool:
    """Whether there is an interval and it excludes 0."""
    a, b = number(row[low]), number(row[high])
    return a is not None and b is not None and (a > 0 or b < 0)


def points(row: Row, name: str = "difference", scale: float = 100.0) -> str:
    return signed(number(row[name]), scale=scale)


def percent(row: Row, name: str) -> str:
    return fixed(number(row[name]))


def by(rows: Sequence[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows under the texts of these columns, in order."""
    out: dict[tuple[str, ...], list[Row]] = {}
    for r in rows:
        out.setdefault(tuple(r[n] for n in names), []).append(r)
    return out


def render(template: str, **values: Any) -> str:
    """A section's template as HTML; everything but figures is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("tokencredit.reporting", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template(template).render(**values)

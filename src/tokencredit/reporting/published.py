"""The papers' whole tables beside ours: each value, its difference, and whether our interval covers it.

Two comparisons a row: the accuracy itself, and the gain over the baseline. Gains are compared over seeds where two or
more are shared, else over problems. Published numbers are data (published_tables.yaml), on the papers' own models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import number, read_csv
from tokencredit.analysis.plan import BASE, Plan
from tokencredit.reporting.results import Results
from tokencredit.reporting.sections import Section
from tokencredit.reporting.tables import csv_text, latex
from tokencredit.reporting.text import fixed, signed
from tokencredit.study.config import Study
from tokencredit.study.sources import HubModel
from tokencredit.study.tables import write_text

TITLE = "The papers' tables beside ours"
COLUMNS = (
    "model", "published_model", "source", "benchmark", "part", "method", "ours", "low", "high", "unit", "published",
    "difference", "covered", "gain", "gain_low", "gain_high", "gain_unit", "published_gain", "gain_covered",
)  # fmt: skip
Span = tuple[float | None, float | None]
Rows = Mapping[tuple[str, ...], Mapping[str, str]]


@dataclass(frozen=True)
class Beside:
    """A published value and ours, as shares. ours None: not there yet. gain: over the baseline, None for itself."""

    model: str
    table: Mapping[str, Any]
    benchmark: str
    part: str
    method: str
    published: float
    ours: float | None
    span: Span
    unit: str
    published_gain: float | None
    gain: float | None
    gain_span: Span
    gain_unit: str

    @property
    def covered(self) -> bool | None:
        return covers(self.span, self.published)

    @property
    def gain_covered(self) -> bool | None:
        return None if self.published_gain is None else covers(self.gain_span, self.published_gain)


def covers(span: Span, value: float) -> bool | None:
    """Whether an interval covers a value; None without one.

    >>> covers((0.1, 0.3), 0.2), covers((0.1, 0.3), 0.31), covers((None, None), 0.2)
    (True, False, None)
    """
    low, high = span
    return None if low is None or high is None else low <= value <= high


def beside(study: Study, results: Results, analysis: Path, tables: Sequence[Mapping[str, Any]]) -> list[Beside]:
    """Every published value that this study has a place for, in the published tables' order."""
    levels: Rows = {
        (r["model"], r["method"], r["benchmark"], r["part"]): r for r in read_csv(analysis / "intervals.csv")
    }
    problems: Rows = {(r["model"], r["method"], r["benchmark"]): r for r in read_csv(analysis / "paired_problems.csv")}
    rows = {**{b: study.benchmarks[b].paper or b for b in study.grid.benchmarks},
            **{a: average.paper or a for a, average in study.averages.items()}}  # fmt: skip
    out: list[Beside] = []
    for model in study.grid.models:
        for table in tables:
            if table["model"] != _called(study, model):
                continue
            for name, row in rows.items():
                out += _of_row(results, model, table, name, row, levels, problems)
    return out


def _called(study: Study, model: str) -> str:
    """Under which name the papers know a model."""
    settings = study.models[model]
    return settings.paper or (settings.source.id.split("/")[-1] if isinstance(settings.source, HubModel) else "")


def _of_row(
    results: Results,
    model: str,
    table: Mapping[str, Any],
    benchmark: str,
    row: str,
    levels: Rows,
    problems: Rows,
) -> Iterator[Beside]:
    p, known = results.plan, {"": table.get("rows", {}).get(row)}
    asked = {key[3] for key in levels if key[2] == benchmark}
    if asked != {""}:  # evaluated, and not pooled here: its problems have no parts
        known |= table.get("parts", {}).get(row, {})
    for part, values in known.items():
        if values is None:
            continue
        by_method = dict(zip(table["methods"], (v / 100 for v in values), strict=True))
        for method, published in by_method.items():
            if method != BASE and method not in p.methods:
                continue
            level = levels.get((model, method, benchmark, part), {})
            compared = method in p.challengers and not part
            gain, span, unit = (
                _gain(results, problems, model, method, benchmark) if compared else (None, (None, None), "")
            )
            reference = by_method.get(p.baseline) if compared else None
            yield Beside(
                model, table, benchmark, part, method, published,
                _number(level, "value"), (_number(level, "low"), _number(level, "high")), level.get("unit", ""),
                None if reference is None else published - reference, gain, span, unit,
            )  # fmt: skip


def _gain(results: Results, problems: Rows, model: str, method: str, benchmark: str) -> tuple[float | None, Span, str]:
    over_seeds = results.pair(model, method, benchmark)
    if over_seeds is not None and over_seeds.low is not None:
        return over_seeds.difference, (over_seeds.low, over_seeds.high), "seeds"
    row = problems.get((model, method, benchmark), {})
    return _number(row, "difference"), (_number(row, "low"), _number(row, "high")), "problems"


def _number(row: Mapping[str, str], column: str) -> float | None:
    return number(row[column]) if column in row else None


# ---- files and page --------------------------------------------------------------------------------


def section(study: Study, results: Results, root: Path, out: Path) -> Section:
    """Tables of every model into `out`, and the report's section: without text where the papers know none of this."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from tokencredit.reporting.report import packaged

    found = beside(study, results, root / "analysis", packaged("published_tables.yaml"))
    files = []
    for model in study.grid.models:
        mine = [b for b in found if b.model == model]
        files.append(write_text(out / f"published_{model}.csv", csv_text(COLUMNS, map(_values, mine))))
        files.append(write_text(out / f"published_{model}.tex", _latex(results.plan, model, mine)))
    if not found:
        return Section(TITLE, "", tuple(files))
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    html = environment.get_template("published.html.j2").render(
        tables=_shown(results.plan, found), baseline=results.plan.label(results.plan.baseline), summary=_summary(found)
    )
    return Section(TITLE, html, tuple(files))


def _values(b: Beside) -> tuple[Any, ...]:
    difference = None if b.ours is None else b.ours - b.published
    return (
        b.model, b.table["model"], b.table["source"], b.benchmark, b.part, b.method, b.ours, *b.span, b.unit,
        b.published, difference, _word(b.covered), b.gain, *b.gain_span, b.gain_unit, b.published_gain,
        _word(b.gain_covered),
    )  # fmt: skip


def _word(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def _shown(p: Plan, found: Sequence[Beside]) -> list[dict[str, Any]]:
    """One table per model and published table."""
    groups: dict[tuple[str, str, str], list[Beside]] = {}
    for b in found:
        groups.setdefault((b.model, b.table["title"], b.table["source"]), []).append(b)
    return [
        {
            "model": model, "title": title, "source": source, "published_model": rows[0].table["model"],
            "parts": any(b.part for b in rows), "rows": [_line(p, b) for b in rows],
        }
        for (model, title, source), rows in groups.items()
    ]  # fmt: skip


def _line(p: Plan, b: Beside) -> dict[str, Any]:
    return {
        "benchmark": p.benchmark_label(b.benchmark),
        "part": b.part,
        "method": p.label(b.method),
        "ours": None if b.ours is None else fixed(b.ours),
        "span": _span(b.span, fixed),
        "unit": b.unit,
        "published": fixed(b.published, 2),
        "difference": "" if b.ours is None else signed(b.ours - b.published),
        "covered": _word(b.covered),
        "gain": "" if b.gain is None else signed(b.gain),
        "gain_span": _span(b.gain_span, signed),
        "gain_unit": b.gain_unit,
        "published_gain": "" if b.published_gain is None else signed(b.published_gain, 2),
        "gain_covered": _word(b.gain_covered),
    }


def _span(span: Span, write: Any) -> str:
    low, high = span
    return "" if low is None or high is None else f"{write(low)} to {write(high)}"


def _summary(found: Sequence[Beside]) -> str:
    """How many of the values and gains our intervals cover."""
    levels = [b.covered for b in found if b.covered is not None]
    gains = [b.gain_covered for b in found if b.gain_covered is not None]
    missing = sum(b.ours is None for b in found)
    said = f"Our 95 % intervals cover {sum(levels)} of {len(levels)} published accuracies"
    said += f" and {sum(gains)} of {len(gains)} published gains over the baseline." if gains else "."
    return said + (f" {missing} of {len(found)} places are not filled yet." if missing else "")


def _latex(p: Plan, model: str, found: Sequence[Beside]) -> str:
    """Ours with its interval, the published value, and the difference, in percent; bold where it is not covered."""
    lines = [
        f"% {latex(p.study)}, {latex(model)}: ours with its 95 % interval, published, difference (bold: not covered)",
        r"\begin{tabular}{llrrr}",
        r"\toprule",
        r"Benchmark & Method & Ours & Published & Difference \\",
        r"\midrule",
    ]
    for b in found:
        name = p.benchmark_label(b.benchmark) + (f", {b.part}" if b.part else "")
        ours = r"\emph{missing}" if b.ours is None else fixed(b.ours)
        if b.span[0] is not None:
            ours += rf" {{\scriptsize [{_span(b.span, fixed).replace(' to ', ', ')}]}}"
        gap = "" if b.ours is None else signed(b.ours - b.published).replace("\N{MINUS SIGN}", "-")
        gap = rf"$\mathbf{{{gap}}}$" if b.covered is False else f"${gap}$" if gap else ""
        lines.append(f"{latex(name)} & {latex(p.label(b.method))} & {ours} & {fixed(b.published, 2)} & {gap} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

"""The main table: method x benchmark at the last step, as CSV and as booktabs LaTeX.

Each entry is the mean over seeds, its sample standard deviation over seeds, and the paired difference to the
baseline with its 95 % t interval over the seeds both have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import cell
from tokencredit.analysis.plan import BASE, plan
from tokencredit.analysis.training_curves import spread
from tokencredit.evaluation.compare import Comparison
from tokencredit.evaluation.metrics import mean
from tokencredit.reporting.results import Results, load
from tokencredit.reporting.text import fixed, signed
from tokencredit.study.tables import write_text

COLUMNS = (
    "model", "method", "label", "benchmark", "step", "mean", "sd", "seeds", "seeds_expected",
    "difference", "low", "high", "paired_seeds", "evidence",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One place of the table. mean, sd: shares, None where missing; of: seeds that should be there."""

    method: str
    benchmark: str
    mean: float | None
    sd: float | None
    seeds: int
    of: int
    pair: Comparison | None


def entries(results: Results, model: str) -> dict[str, list[Entry]]:
    """Method -> its entries in the order of `shown_benchmarks`."""
    p = results.plan
    table: dict[str, list[Entry]] = {}
    for method in results.shown_methods():
        of = 1 if method == BASE else len(p.seeds)
        table[method] = []
        for benchmark in results.shown_benchmarks():
            values = list(results.values(model, method, 0 if method == BASE else p.last, benchmark).values())
            pair = results.pair(model, method, benchmark) if method in p.challengers else None
            middle = mean(values) if values else None
            table[method].append(Entry(method, benchmark, middle, spread(values), len(values), of, pair))
    return table


def names(spec: Mapping[str, Any]) -> list[str]:
    """File names of every table of the study whose `aggregate` spec this is."""
    kinds = [(kind, model) for kind in ("main", "published") for model in plan(spec).models]
    return [f"{kind}_{model}.{ending}" for kind, model in kinds for ending in ("csv", "tex")]


def write(spec: Mapping[str, Any], root: Path | str, out: Path | str | None = None) -> list[Path]:
    """Write the main tables from {root}/analysis into `out` (default {root}/tables). Returns the files written."""
    out = Path(root) / "tables" if out is None else Path(out)
    results, files = load(spec, Path(root) / "analysis"), []
    for model in results.plan.models:
        files.append(write_text(out / f"main_{model}.csv", _csv(results, model)))
        files.append(write_text(out / f"main_{model}.tex", _latex(results, model)))
    return files


def _csv(results: Results, model: str) -> str:
    p, rows = results.plan, []
    for method, row in entries(results, model).items():
        for e in row:
            step = 0 if method == BASE else p.last
            r = e.pair
            tail = (r.difference, r.low, r.high, r.n, _evidence(r)) if r else (None,) * 5
            rows.append((model, method, p.label(method), e.benchmark, step, e.mean, e.sd, e.seeds, e.of, *tail))
    return csv_text(COLUMNS, rows)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV, numbers as in the aggregate files."""
    lines = [",".join(columns), *(",".join(_quoted(cell(v)) for v in row) for row in rows)]
    return "\n".join(lines) + "\n"


def _evidence(r: Comparison) -> str:
    return {True: "yes", False: "no", None: ""}[r.evidence]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def _latex(results: Results, model: str) -> str:
    """Two lines per method: mean and sd in percent; then difference and interval, bold where it excludes 0."""
    p, shown = results.plan, results.shown_benchmarks()
    head = " & ".join(["Method", *(latex(p.benchmark_label(b)) for b in shown)])
    lines = [
        f"% {latex(p.study)}, {latex(model)}, step {p.last}: mean over seeds, +- sd over seeds, in percent;",
        f"% second line: difference to {latex(p.label(p.baseline))}, paired by seed, with its 95 % t interval.",
        r"\begin{tabular}{l" + "r" * len(shown) + "}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
    ]
    for method, row in entries(results, model).items():
        lines.append(" & ".join([latex(p.label(method)), *(_score(e) for e in row)]) + r" \\")
        if method in p.challengers:
            lines.append(" & ".join(["", *(_pair(e.pair) for e in row)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _score(e: Entry) -> str:
    if e.mean is None:
        return r"\emph{missing}"
    text = _ascii(fixed(e.mean))
    if e.sd is not None:
        text += rf" {{\scriptsize$\pm$\,{fixed(e.sd)}}}"
    return text + (rf" {{\scriptsize({e.seeds}/{e.of})}}" if e.seeds < e.of else "")


def _pair(r: Comparison | None) -> str:
    if r is None:
        return r"{\scriptsize\emph{missing}}"
    difference = f"${_ascii(signed(r.difference))}$"
    if r.evidence:
        difference = rf"$\mathbf{{{_ascii(signed(r.difference))}}}$"
    if r.low is None:
        return rf"{{\scriptsize {difference}}}"
    return rf"{{\scriptsize {difference} [${_ascii(signed(r.low))}$, ${_ascii(signed(r.high))}$]}}"


def _ascii(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-").replace("–", "--")


def latex(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> latex("50 % of a_b")
    '50 \\% of a\\_b'
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c) or ("\\" + c if c in "&%$#_{}" else c) for c in text)

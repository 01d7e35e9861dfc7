"""The report's section on where a gain comes from: by how often the baseline solves a problem, and by pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import number
from tokencredit.analysis.plan import Plan
from tokencredit.analysis.side_by_side import pooled
from tokencredit.analysis.strata import STRATA, WAYS
from tokencredit.reporting import style
from tokencredit.reporting.inline import inline_svg, palette
from tokencredit.reporting.results import Results
from tokencredit.reporting.rows import Row, by, percent, points, render, span, sure, table
from tokencredit.reporting.sections import Section
from tokencredit.reporting.text import listed, signed

TITLE = "Where the gain comes from"
SOLVED = ("never", "up to ¼", "¼ to ¾", "above ¾", "always")  # STRATA as a reader sees them
SORTED = {"same": "the same samples", "half": "the other half", "run": "another run"}

Data = dict[str, Any]


def section(results: Results, root: Path, out: Path, notes: Sequence[str] = ()) -> Section | None:
    """None where no method has a seed in common with the baseline. notes: what papers say; figures go into `out`."""
    from markupsafe import Markup

    p = results.plan
    strata, passed = (table(root / "analysis" / f"{n}.csv") for n in ("strata", "pass_differences"))
    if not strata:
        return None
    alone = {b.name for b in p.benchmarks}
    together = pooled(results.headline, p.means.get(results.headline, (results.headline,)))
    colours, files, models = palette([*p.methods, *style.METHOD_STYLES]), [], []
    for model in p.models:
        whole = [r for r in strata if r["model"] == model and r["benchmark"] == together]
        if not whole:
            continue
        way = honest(whole)
        drawn = [
            _strata_figure(p, whole, way, out / f"analysis_gain_strata_{model}"),
            _pass_figure(results, [r for r in passed if r["model"] == model], out / f"analysis_gain_passk_{model}"),
        ]
        files += [path for made, _ in drawn for path in made]
        models.append(
            {
                "name": model,
                "sorted_by": SORTED[way],
                "naive": way == "same",
                "sentences": [_sentence(p, r, way) for r in by(whole, "method").values()],
                "rows": [_row(p, r, way) for r in by(whole, "method").values()],
                "ways": [_way(p, r) for r in whole if r["rows"] != "0"],
                "benchmarks": [
                    _way(p, r) | {"benchmark": p.benchmark_label(r["benchmark"])}
                    for r in strata
                    if r["model"] == model and r["benchmark"] in alone and r["sorted_by"] == way and r["rows"] != "0"
                ],
                "figures": [Markup(inline_svg(made[0], alt, colours)) if made else "" for made, alt in drawn],
            }
        )
    html = render(
        "gain.html.j2", models=models, several=len(p.models) > 1, baseline=p.label(p.baseline), solved=SOLVED,
        notes=notes, headline=p.benchmark_label(results.headline),
    )  # fmt: skip
    return Section(TITLE, html, tuple(files))


def honest(rows: Sequence[Row]) -> str:
    """The best way of sorting that these rows have: another run's samples, else the other half's, else their own."""
    return next(way for way in reversed(WAYS) if any(r["sorted_by"] == way for r in rows))


def _name(row: Row) -> str:
    return SOLVED[STRATA.index(row["stratum"])]


def _sentence(p: Plan, rows: Sequence[Row], way: str) -> str:
    """Where one method's intervals exclude 0, by the honest way of sorting."""
    label, base = p.label(rows[0]["method"]), p.label(p.baseline)
    mine = [r for r in rows if r["sorted_by"] == way and r["rows"] != "0"]
    found = [r for r in mine if sure(r)]
    if not mine:
        return f"{label}: not enough runs yet to sort problems in this way."
    if not found:
        return f"{label}: no group of problems has an interval that excludes 0."
    said = listed([f"{points(r)} ({span(r)}) where {base} solves {_name(r)}" for r in found])
    return f"{label}: {said}."


def _row(p: Plan, rows: Sequence[Row], way: str) -> Data:
    """One line of the main table: each stratum by the honest way, and the naive number under it."""
    found = {(r["sorted_by"], r["stratum"]): r for r in rows}
    cells = []
    for name in STRATA:
        r, naive = found.get((way, name)), found["same", name]
        if r is None:
            cells.append({"missing": True, "naive": points(naive)})
            continue
        cells.append(
            {
                "missing": False,
                "empty": r["rows"] == "0",
                "difference": points(r),
                "interval": span(r),
                "share": percent(r, "share"),
                "naive": points(naive),
            }
        )
    return {"label": p.label(rows[0]["method"]), "cells": cells}


def _way(p: Plan, r: Row) -> Data:
    return {
        "method": p.label(r["method"]),
        "sorted_by": SORTED[r["sorted_by"]],
        "stratum": _name(r),
        "share": percent(r, "share"),
        "problems": r["problems"],
        "baseline": percent(r, "baseline_value"),
        "value": percent(r, "value"),
        "difference": points(r),
        "interval": span(r),
        "contribution": signed(number(r["contribution"]), 2),
    }


def _strata_figure(p: Plan, rows: Sequence[Row], way: str, stem: Path) -> tuple[list[Path], str]:
    """One panel per method: the honest differences with intervals, the naive ones hollow beside them."""
    said, groups = [], by(rows, "method")
    with style.house():
        figure, axes = style.panels(len(groups), height=2.3)
        for axis, ((method,), mine) in zip(axes, groups.items(), strict=True):
            colour, _, marker = style.look(method, list(p.methods))
            for r in mine:
                value = number(r["difference"])
                x = STRATA.index(r["stratum"])
                if value is None or r["sorted_by"] not in (way, "same"):
                    continue
                if r["sorted_by"] == "same" and way != "same":
                    axis.plot(
                        [x + 0.22], [value * 100], marker, color=style.MUTED, markerfacecolor="none", markersize=5
                    )
                    continue
                low, high = number(r["low"]), number(r["high"])
                if low is not None and high is not None:
                    axis.plot([x, x], [max(low, -1) * 100, min(high, 1) * 100], color=colour, linewidth=2.2)
                axis.plot([x], [value * 100], marker, color=colour, markersize=6.5)
            axis.axhline(0, color=style.MUTED, linewidth=1.0)
            axis.set_title(p.label(method))
            axis.set_xlim(-0.5, len(STRATA) - 0.3)
            axis.set_xticks(range(len(STRATA)))
            axis.set_xticklabels(SOLVED)
            shown = [r for r in mine if r["sorted_by"] == way and r["rows"] != "0"]
            said.append(f"{p.label(method)}: {', '.join(f'{_name(r)} {points(r)}' for r in shown)}")
        style.bottom(axes, f"how often {p.label(p.baseline)} solves the problem")
        style.left(axes, "points")
        files = style.save(figure, stem)
    return files, f"Gain by how often {p.label(p.baseline)} solves the problem. {'; '.join(said)}."


def _pass_figure(results: Results, rows: Sequence[Row], stem: Path) -> tuple[list[Path], str]:
    """Difference in pass@k against k, one panel per benchmark, the headline first."""
    from matplotlib.ticker import FixedLocator, NullLocator

    p, groups, said = results.plan, by(rows, "benchmark"), []
    shown = [b for b in sorted(results.shown_benchmarks(), key=lambda b: b != results.headline) if (b,) in groups]
    shown = [b for b in shown if len({r["k"] for r in groups[b,]}) > 1]
    if not shown:
        return [], ""
    with style.house():
        figure, axes = style.panels(len(shown))
        for axis, benchmark in zip(axes, shown, strict=True):
            labels, ks = [], sorted({int(r["k"]) for r in groups[benchmark,]})
            for (method,), mine in by(groups[benchmark,], "method").items():
                colour, _, marker = style.look(method, list(p.methods))
                x = [math.log2(int(r["k"])) for r in mine]
                y, low, high = (
                    [100 * (number(r[n]) or 0.0) for r in mine] for n in ("difference", "boot_low", "boot_high")
                )
                axis.fill_between(x, low, high, color=colour, alpha=style.band(p.methods), linewidth=0)
                axis.plot(x, y, color=colour, marker=marker, markersize=4.2)
                labels.append((x[-1], y[-1], p.label(method), colour))
                if benchmark == results.headline:
                    ends = f"{signed(y[0], 1, 1)} at k = {ks[0]}, {signed(y[-1], 1, 1)} at k = {ks[-1]}"
                    said.append(f"{p.label(method)} {ends}")
            axis.axhline(0, color=style.MUTED, linewidth=1.0)
            axis.set_title(p.benchmark_label(benchmark))
            axis.margins(x=0.03, y=0.08)
            axis.autoscale_view()
            style.end_labels(axis, labels)
            axis.xaxis.set_major_locator(FixedLocator([math.log2(k) for k in ks]))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xticklabels([str(k) for k in ks])
        style.bottom(axes, "samples per problem, k")
        style.left(axes, f"points above {p.label(p.baseline)}")
        files = style.save(figure, stem)
    return files, f"Difference in pass@k to {p.label(p.baseline)}: {'; '.join(said)}."

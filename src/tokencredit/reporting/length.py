"""The report's section on length: how much of each gain is left where answers may take as many tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import number
from tokencredit.analysis.plan import Plan
from tokencredit.analysis.side_by_side import pooled
from tokencredit.reporting import style
from tokencredit.reporting.inline import inline_svg, palette
from tokencredit.reporting.plots import finish
from tokencredit.reporting.results import Results
from tokencredit.reporting.rows import Row, by, percent, points, render, span, sure, table
from tokencredit.reporting.sections import Section
from tokencredit.reporting.text import fixed, interval, signed
from tokencredit.study.config import Study

TITLE = "Length or credit"
TENTH = 100 * math.log2(1.1)  # points per doubling -> points for a tenth more tokens
ALIKE = 1.05  # answers whose lengths differ by less than this factor are told as equally long

Data = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A control arm. like: the method whose length it is held to; free: the method that it would be without that."""

    name: str
    like: str
    free: str | None


def section(
    results: Results, root: Path, out: Path, notes: Sequence[str] = (), found: Sequence[Arm] = ()
) -> Section | None:
    """None where no method has a seed in common with the baseline. notes: what papers say; figures go into `out`."""
    from markupsafe import Markup

    p = results.plan
    lengths, budgets, tokens, fits = (
        table(root / "analysis" / f"{n}.csv") for n in ("equal_length", "budgets", "equal_tokens", "length_models")
    )
    if not lengths:
        return None
    colours, files, models = palette([*p.methods, *style.METHOD_STYLES]), [], []
    for model in p.models:
        whole = [r for r in lengths if r["model"] == model and r["benchmark"] == results.headline]
        if not whole:
            continue
        made, alt = _figure(
            results, [r for r in budgets if r["model"] == model], out / f"analysis_length_budgets_{model}"
        )
        files += made
        mine = [r for r in fits if r["model"] == model]
        models.append(
            {
                "name": model,
                "sentences": [sentence(p, r) for r in whole],
                "controls": controls(results, model, found),
                "rows": [_row(p, r) for r in whole],
                "benchmarks": [
                    _row(p, r) | {"benchmark": p.benchmark_label(r["benchmark"])}
                    for r in lengths
                    if r["model"] == model and r["benchmark"] != results.headline
                ],
                "figure": Markup(inline_svg(made[0], alt, colours)),
                "slope": _slope(mine, results.headline),
                "fits": [_fit(p, r["method"], mine, results.headline) for r in whole],
                "tokens": [_tokens(p, r) for r in tokens if r["model"] == model and r["benchmark"] == results.headline],
            }
        )
    html = render(
        "length.html.j2", models=models, several=len(p.models) > 1, baseline=p.label(p.baseline), notes=notes,
        headline=p.benchmark_label(results.headline),
    )  # fmt: skip
    return Section(TITLE, html, tuple(files))


def sentence(p: Plan, r: Row) -> str:
    """What of one method's gain is left at equal spending, with its interval, and no more than the numbers allow."""
    label, base, ratio = p.label(r["method"]), p.label(p.baseline), number(r["ratio"]) or 1.0
    alike = 1 / ALIKE < ratio < ALIKE
    long = f"about as long as {base}'s" if alike else f"{fixed(ratio, 2, 1.0)} times as long as {base}'s"
    about = f"{label}'s answers are {long}"
    factor = span(r, "ratio_low", "ratio_high", 2, 1.0).replace("+", "")
    about += f" ({factor}). " if factor and not alike else ". "
    left = f"{points(r, 'equal')} points" + (f" ({span(r, 'equal_low', 'equal_high')})" if r["equal_low"] else "")
    where = f"within the length that holds 95 % of {base}'s answers"
    matched = f" Between answers to one problem of like length it is {points(r, 'matched')}"
    matched += f" ({span(r, 'matched_low', 'matched_high')})." if r["matched_low"] else "."
    matched = matched if r["matched"] else ""
    gain = points(r, "gain")
    if not r["gain_low"]:
        return about + f"Its difference of {gain} points has no interval (one run); {where} it is {left}.{matched}"
    total = f"{gain} points ({span(r, 'gain_low', 'gain_high')})"
    if not sure(r, "gain_low", "gain_high"):
        return about + f"Its difference of {total} cannot be told from zero; {where} it is {left}.{matched}"
    kept = f"Of its {'gain' if (number(r['gain']) or 0.0) > 0 else 'loss'} of {total}, {left} remain {where}"
    if not r["share"]:
        return f"{about}{kept}; the share is left open, since redrawing the problems too leaves 0 possible.{matched}"
    edges = f"{_percent(r, 'share_low')} to {_percent(r, 'share_high')} %"
    return f"{about}{kept}: {_percent(r, 'share')} % of it ({edges}).{matched}"


def _percent(r: Row, name: str) -> str:
    return fixed(number(r[name]), 0)


def _row(p: Plan, r: Row) -> Data:
    share = f"{_percent(r, 'share')} %" if r["share"] else ""
    return {
        "label": p.label(r["method"]),
        "ratio": fixed(number(r["ratio"]), 2, 1.0),
        "ratio_span": span(r, "ratio_low", "ratio_high", 2, 1.0).replace("+", ""),
        "length": fixed(number(r["length"]), 0, 1.0),
        "baseline_length": fixed(number(r["baseline_length"]), 0, 1.0),
        "truncated": fixed(number(r["truncated"])),
        "baseline_truncated": fixed(number(r["baseline_truncated"])),
        "per_1000": fixed(number(r["per_1000"]), 2, 1.0),
        "baseline_per_1000": fixed(number(r["baseline_per_1000"]), 2, 1.0),
        "per_1000_span": span(r, "per_1000_low", "per_1000_high", 2, 1.0),
        "gain": points(r, "gain"),
        "gain_span": span(r, "gain_low", "gain_high"),
        "equal": points(r, "equal"),
        "equal_span": span(r, "equal_low", "equal_high"),
        "share": share or "–",
        "share_span": f"{_percent(r, 'share_low')} to {_percent(r, 'share_high')} %" if share else "",
        "half": points(r, "half"),
        "half_span": span(r, "half_low", "half_high"),
        "matched": points(r, "matched"),
        "matched_span": span(r, "matched_low", "matched_high"),
        "overlap": percent(r, "overlap"),
        "limit": r["limit"],
        "half_limit": r["half_limit"],
    }


def _estimate(rows: Sequence[Row], fit: str, term: str, method: str, benchmark: str) -> Row | None:
    key = (fit, term, method, benchmark)
    return next((r for r in rows if (r["fit"], r["term"], r["method"], r["benchmark"]) == key and r["estimate"]), None)


def _slope(rows: Sequence[Row], headline: str) -> Data:
    """Points for answers that are a tenth longer, among runs of one method and among all runs."""
    found = {t: _estimate(rows, "runs", t, "", headline) for t in ("slope", "slope_all")}
    return {
        t: {"value": points(r, "estimate", TENTH), "interval": span(r, scale=TENTH), "n": r["n"]} if r else None
        for t, r in found.items()
    }


def _fit(p: Plan, method: str, rows: Sequence[Row], headline: str) -> Data:
    together = pooled(headline, p.means.get(headline, (headline,)))
    terms = {
        "difference": ("runs", "difference", headline),
        "runs": ("runs", "at_equal_length", headline),
        "problems_difference": ("problems", "difference", together),
        "slope": ("problems", "slope", together),
        "through": ("problems", "through_length", together),
        "problems": ("problems", "at_equal_length", together),
    }
    out: Data = {"label": p.label(method)}
    for name, (fit, term, benchmark) in terms.items():
        r = _estimate(rows, fit, term, method, benchmark)
        scale = TENTH if term == "slope" else 100.0
        found = {"value": points(r, "estimate", scale), "interval": span(r, scale=scale)} if r else None
        out[name] = found or {"value": "–", "interval": ""}
    return out


def _tokens(p: Plan, r: Row) -> Data:
    return {
        "label": p.label(r["method"]),
        "baseline_k": r["baseline_k"],
        "k": r["k"] or "by benchmark",
        "baseline": percent(r, "baseline_value"),
        "value": percent(r, "value"),
        "difference": points(r),
        "interval": span(r),
    }


def _figure(results: Results, rows: Sequence[Row], stem: Path) -> tuple[list[Path], str]:
    """Share of answers that are right and finished within B tokens, one panel per benchmark, the headline first."""
    p, groups, said = results.plan, by(rows, "benchmark"), []
    shown = [b for b in sorted(results.shown_benchmarks(), key=lambda b: b != results.headline) if (b,) in groups]
    with style.house():
        figure, axes = style.panels(len(shown))
        for axis, benchmark in zip(axes, shown, strict=True):
            methods = by(groups[benchmark,], "method")
            widest = max(methods.values(), key=lambda mine: int(mine[0]["seeds"]))
            lines = {p.baseline: (widest, "baseline_value"), **{m: (mine, "value") for (m,), mine in methods.items()}}
            labels = []
            for method in [m for m in p.methods if m in lines]:
                mine, column = lines[method]
                colour, _, marker = style.look(method, list(p.methods))
                x = [float(r["budget"]) for r in mine]
                y = [100 * (number(r[column]) or 0.0) for r in mine]
                axis.plot(x, y, color=colour, linestyle=style.dash(method, p.baseline), marker=marker, markersize=2.8)
                labels.append((x[-1], y[-1], p.label(method), colour))
                if benchmark == results.headline:
                    middle = len(x) // 2
                    half = f"{y[middle]:.1f} % within {x[middle]:.0f} tokens"
                    said.append(f"{p.label(method)} {half}, {y[-1]:.1f} % in all")
            axis.set_title(p.benchmark_label(benchmark))
            finish(axis, labels)
        style.bottom(axes, "token budget per answer")
        style.left(axes, "% right in budget")
        files = style.save(figure, stem)
    return files, f"Accuracy within a budget of tokens: {'; '.join(said)}."


def arms(study: Study) -> list[Arm]:
    """The methods of the grid whose answers are held to the length of another one's."""
    found = []
    for name in study.grid.methods:
        method = study.methods[name]
        if method.length is not None:
            free = method.model_copy(update={"length": None, "label": ""})
            same = [n for n in study.grid.methods if study.methods[n].model_copy(update={"label": ""}) == free]
            found.append(Arm(name, method.length.like, same[0] if same else None))
    return found


def controls(results: Results, model: str, found: Sequence[Arm]) -> list[str]:
    """One sentence per control arm that was evaluated: what part of a gain it reaches, or keeps.

    The part is a ratio of two means, only where the gain's interval excludes 0; the arm's own interval stands beside.
    """
    p, said = results.plan, []
    base = p.label(p.baseline)
    for arm in found:
        mine = results.pair(model, arm.name, results.headline)
        if mine is None:
            continue
        # the baseline at another's length is measured by that one's gain; a method at the baseline's by its own
        whose = arm.like if arm.free in (p.baseline, None) else arm.free
        whole = None if whose == p.baseline else results.pair(model, whose, results.headline)
        where = f" ({interval(mine)})" if mine.low is not None else ""
        text = f"{p.label(arm.name)}, at the length of {p.label(arm.like)}, is {signed(mine.difference)} points{where} "
        text += f"above {base}"
        if whole is not None and whole.evidence:
            verb = "reaches" if whose == arm.like else "keeps"
            share = fixed(mine.difference / whole.difference, 0)
            text += f": it {verb} {share} % of {p.label(whose)}'s gain of {signed(whole.difference)}"
        elif whole is not None:
            text += f"; {p.label(whose)} itself has no gain that can be told from zero"
        said.append(f"{text}.")
    return said

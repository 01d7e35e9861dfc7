"""What the checkpoints scored, as figures: differences, accuracy over steps, pass@k, length against accuracy.

Each function takes (results, model) and returns the figure, or None where there is nothing to show, and its
alternative text. Accuracies are drawn in percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tokencredit.analysis.plan import BASE, Plan
from tokencredit.evaluation.metrics import mean
from tokencredit.reporting import style
from tokencredit.reporting.results import Results

Drawn = tuple[Any, str]


def difference(results: Results, model: str) -> Drawn:
    """Intervals of method minus baseline, one panel per benchmark, dots per seed."""
    p = results.plan
    found = {(m, b): results.pair(model, m, b) for m in p.challengers for b in results.shown_benchmarks()}
    if not any(found.values()):
        return None, f"No method has a seed in common with {p.label(p.baseline)} yet."
    others = [b for b in results.shown_benchmarks() if b != results.headline]
    benchmarks, columns = [results.headline, *others], min(4, 1 + len(others))
    figure, axes = style.panels(len(benchmarks), columns, height=0.8 + 0.4 * len(p.challengers))
    reach = 0.0
    for axis, benchmark in zip(axes, benchmarks, strict=True):
        for y, method in enumerate(p.challengers):
            colour, _, marker = style.look(method, list(p.methods))
            r = found[method, benchmark]
            if r is None:
                place = axis.get_yaxis_transform()  # x in shares of the panel
                axis.text(0.53, y, "no value yet", va="center", color=style.MUTED, fontsize=8, transform=place)
                continue
            reach = max([reach, *(abs(v) for v in (r.low, r.high, r.difference, *r.values.values()) if v is not None)])
            if r.low is not None and r.high is not None:
                axis.plot([r.low * 100, r.high * 100], [y, y], color=colour, linewidth=2.2)
            seeds = [v * 100 for v in r.values.values()]
            axis.plot(seeds, [y + 0.24] * len(seeds), "|", color=colour, markersize=5.5, alpha=0.75)
            axis.plot([r.difference * 100], [y], marker, color=colour, markersize=6.5)
        axis.axvline(0, color=style.MUTED, linewidth=1.0)
        axis.set_title(p.benchmark_label(benchmark))
        axis.set_ylim(len(p.challengers) - 0.5, -0.6)
        axis.grid(True, axis="x")
        axis.grid(False, axis="y")
    for i, axis in enumerate(axes):
        limit = max(reach * 108, 1.0)
        axis.set_xlim(-limit, limit)
        axis.set_yticks(range(len(p.challengers)))
        first = i % columns == 0
        axis.set_yticklabels([p.label(m) for m in p.challengers] if first else [])
        for text, method in zip(axis.get_yticklabels(), p.challengers, strict=False):
            text.set_color(style.look(method, list(p.methods))[0])
            text.set_fontweight("bold")
    style.bottom(axes, f"points above {p.label(p.baseline)}")
    said = []
    for method in p.challengers:
        r = found[method, results.headline]
        if r is not None:
            span = "" if r.low is None or r.high is None else f", interval {r.low * 100:+.1f} to {r.high * 100:+.1f}"
            said.append(f"{p.label(method)} {r.difference * 100:+.1f} points{span}, {r.n} seeds")
    return figure, f"{p.benchmark_label(results.headline)}, compared with {p.label(p.baseline)}: {'; '.join(said)}."


def over_steps(metric: str, scale: float, unit: str, what: str) -> Callable[[Results, str], Drawn]:
    """One panel per benchmark: mean over seeds per evaluated step, a band from the lowest to the highest seed."""

    def make(results: Results, model: str) -> Drawn:
        p, said = results.plan, []
        shown = [b for b in results.shown_benchmarks() if _any_score(results, model, b, metric)]
        if not shown:
            return None, "No checkpoint has been evaluated yet."
        figure, axes = style.panels(len(shown))
        for axis, benchmark in zip(axes, shown, strict=True):
            start = results.values(model, BASE, 0, benchmark, metric)
            labels = []
            for method in p.methods:
                points = [(s, list(results.values(model, method, s, benchmark, metric).values())) for s in p.steps]
                if not any(values for _, values in points):
                    continue  # a start that all methods share is not this method's
                points = [(0, list(start.values())), *points]
                points = [(s, [v * scale for v in values]) for s, values in points if values]
                end = _line(axis, points, method, p)
                labels.append((*end, p.label(method), style.look(method, list(p.methods))[0]))
                if benchmark == results.headline:
                    said.append(f"{p.label(method)} {points[0][1][0]:.3g} to {end[1]:.3g}")
            axis.set_title(p.benchmark_label(benchmark))
            phase_shade(axis, p)
            finish(axis, labels)
        style.bottom(axes, "optimisation step")
        style.left(axes, unit)
        shade = f" Shaded to step {max(p.phases.values())}." if p.phases else ""
        return figure, f"{what} over training steps, {p.benchmark_label(results.headline)}: {'; '.join(said)}.{shade}"

    return make


def phase_shade(axis: Any, p: Plan) -> None:
    """Shade the steps in which perturbed prompts act, once for each end, in the colour of the first method with it."""
    ends = {end: method for method, end in reversed(list(p.phases.items()))}
    for end, method in ends.items():
        axis.axvspan(0, end, color=style.look(method, list(p.methods))[0], alpha=0.08, linewidth=0, zorder=0)


def _any_score(results: Results, model: str, benchmark: str, metric: str) -> bool:
    return any(k[0] == model and k[1] != BASE and k[3] == benchmark and k[4] == metric for k in results.scores)


def _line(axis: Any, points: Sequence[tuple[float, Sequence[float]]], method: str, p: Plan) -> tuple[float, float]:
    """Mean line with a band from lowest to highest; returns its last point."""
    colour, _, marker = style.look(method, list(p.methods))
    x, y = [s for s, _ in points], [mean(v) for _, v in points]
    low, high = [min(v) for _, v in points], [max(v) for _, v in points]
    if any(a < b for a, b in zip(low, high, strict=True)):
        axis.fill_between(x, low, high, color=colour, alpha=style.band(p.methods), linewidth=0)
    size = 4.2 if len(p.methods) <= style.CROWD else 2.8
    axis.plot(x, y, color=colour, linestyle=style.dash(method, p.baseline), marker=marker, markersize=size)
    return x[-1], y[-1]


def finish(axis: Any, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Round ticks inside the data's range, then names at the line ends."""
    from matplotlib.ticker import MaxNLocator

    axis.margins(x=0.02, y=0.08)
    axis.autoscale_view()
    last = axis.get_xlim()[1]
    ticks = [t for t in MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(0, last) if 0 <= t <= last]
    axis.yaxis.set_major_locator(MaxNLocator(4))
    style.end_labels(axis, labels)
    axis.set_xticks(ticks)


def pass_at_k(results: Results, model: str) -> Drawn:
    """pass@k at the last step, one panel per benchmark, k on a log axis."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    p, said = results.plan, []
    shown = [b for b in results.shown_benchmarks() if len(_ks(results, model, b)) > 1]
    if not shown:
        return None, "No benchmark has more than one sample per problem at the last step."
    figure, axes = style.panels(len(shown))
    for axis, benchmark in zip(axes, shown, strict=True):
        ks, labels = _ks(results, model, benchmark), []
        for method in results.shown_methods():
            by_k = results.by_k(model, method, 0 if method == BASE else p.last, benchmark, "pass")
            if not by_k:
                continue
            points = [(math.log2(k), [v * 100 for v in seeds.values()]) for k, seeds in by_k.items()]
            end = _line(axis, points, method, p)
            labels.append((*end, p.label(method), style.look(method, list(p.methods))[0]))
            if benchmark == results.headline:
                said.append(f"{p.label(method)} {mean(points[0][1]):.1f} at k = 1, {end[1]:.1f} at k = {max(by_k)}")
        axis.set_title(p.benchmark_label(benchmark))
        axis.margins(x=0.03, y=0.08)
        axis.autoscale_view()
        axis.yaxis.set_major_locator(MaxNLocator(4))
        style.end_labels(axis, labels)
        axis.xaxis.set_major_locator(FixedLocator([math.log2(k) for k in ks]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels([str(k) for k in ks])
    style.bottom(axes, "samples per problem, k")
    style.left(axes, "% of problems")
    return figure, f"pass@k at the last step, {p.benchmark_label(shown[-1])}: {'; '.join(said)}."


def _ks(results: Results, model: str, benchmark: str) -> list[int]:
    steps = {m: 0 if m == BASE else results.plan.last for m in results.shown_methods()}
    return sorted({k for m, s in steps.items() for k in results.by_k(model, m, s, benchmark, "pass")})


def length_accuracy(results: Results, model: str) -> Drawn:
    """Headline accuracy against mean response length, one dot per run, a larger one for a method's mean."""
    p, benchmark = results.plan, results.headline
    figure, (axis,) = style.panels(1, height=2.9)
    labels, said, lengths = [], [], []
    for method in results.shown_methods():
        step = 0 if method == BASE else p.last
        accuracy = results.values(model, method, step, benchmark)
        length = results.values(model, method, step, benchmark, "length_mean")
        seeds = sorted(set(accuracy) & set(length))
        if not seeds:
            continue
        colour, _, marker = style.look(method, list(p.methods))
        x, y = [length[s] for s in seeds], [accuracy[s] * 100 for s in seeds]
        axis.plot(x, y, marker, color=colour, alpha=0.45, markersize=5, linestyle="none")
        axis.plot([mean(x)], [mean(y)], marker, color=colour, markersize=9, markeredgecolor=style.PAPER)
        labels.append((mean(x), mean(y), p.label(method), colour))
        lengths += x
        said.append(f"{p.label(method)} {mean(x):.0f} tokens, {mean(y):.1f} %")
    if len(labels) < 2:
        return None, "Fewer than two methods have been evaluated at the last step."
    axis.margins(0.08)
    axis.autoscale_view()
    style.end_labels(axis, labels)
    axis.set_xlabel("mean response length, tokens")
    axis.set_ylabel("accuracy, %")
    axis.grid(True, axis="x")
    axis.set_title(p.benchmark_label(benchmark))
    return figure, f"Length and accuracy at the last step: {'; '.join(said)}."

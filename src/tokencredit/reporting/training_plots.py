"""What training recorded, as figures: one panel per metric, mean over seeds and their range."""

from __future__ import annotations

import math
from collections.abc import Callable

from tokencredit.evaluation.metrics import mean
from tokencredit.reporting import style
from tokencredit.reporting.plots import Drawn, finish
from tokencredit.reporting.results import Results

# training metrics by their names in the metrics table: title, unit, factor
TRAINING = {
    "reward_mean": ("Mean reward", "", 1.0),
    "entropy": ("Entropy of the next token", "nats", 1.0),
    "length_mean": ("Response length", "tokens", 1.0),
    "equal_groups": ("Groups with equal rewards", "%", 100.0),
    "truncated": ("Cut off at the limit", "%", 100.0),
    "grad_norm": ("Gradient norm", "", 1.0),
}
# phases of a rollout step, in order, and their colours
PHASES = {
    "rollout": "#0a66b2", "grade": "#5a4fcf", "score": "#0b7f92", "probe": "#c24a06", "update": "#4a525c",
    "sync": "#937000", "checkpoint": "#8d949e",
}  # fmt: skip
# what the credits log, by the last part of its name; anything else is shown under its own name
CREDIT = {
    "margin_mean": ("Mean margin", "", 1.0),
    "hesitant_share": ("Hesitant tokens", "%", 100.0),
    "weight_max": ("Largest weight", "", 1.0),
    "gini": ("Gini coefficient of the weights", "", 1.0),
    "effective_token_ratio": ("Effective token ratio", "", 1.0),
    "hesitation_instability": ("Correlation of 1 - margin and drift", "", 1.0),
    "clipped_high": ("Clipped above", "%", 100.0),
    "clipped_low": ("Clipped below", "%", 100.0),
    "dual_clipped": ("Dual clip", "%", 100.0),
    "gated": ("Gated by more than half", "%", 100.0),
    "future_raised": ("Raised by future KL", "%", 100.0),
    "future_unsafe": ("Unsafe ratio", "%", 100.0),
    "drift_mean": ("Mean drift", "", 1.0),
    "drift_p50": ("Drift, median", "", 1.0),
    "drift_p90": ("Drift, 90th percentile", "", 1.0),
    "drift_p99": ("Drift, 99th percentile", "", 1.0),
    "corrected_share": ("Corrected tokens", "%", 100.0),
    "correction_mean": ("Mean correction", "", 1.0),
}


def training(results: Results, model: str) -> Drawn:
    """Panels of the metrics in TRAINING that the study has recorded."""
    found = _recorded(results, model)
    wanted = [(m, *TRAINING[m]) for m in TRAINING if m in found]
    return _curves(results, model, wanted, "Training metrics")


def credit(prefixes: tuple[str, ...], what: str) -> Callable[[Results, str], Drawn]:
    """Panels of every training metric whose name starts with one of `prefixes`, nine at most."""

    def make(results: Results, model: str) -> Drawn:
        found = [m for m in _recorded(results, model) if m.startswith(prefixes)]
        order = list(CREDIT)
        found.sort(key=lambda m: (order.index(_short(m)) if _short(m) in CREDIT else len(order), m))
        wanted = [(m, *CREDIT.get(_short(m), (_short(m).replace("_", " ").capitalize(), "", 1.0))) for m in found]
        return _curves(results, model, wanted[:9], what)

    return make


def _short(metric: str) -> str:
    return metric.rsplit("/", 1)[-1]


def _recorded(results: Results, model: str) -> list[str]:
    return sorted({metric for of, _, metric in results.curves if of == model})


def _curves(results: Results, model: str, wanted: list[tuple[str, str, str, float]], what: str) -> Drawn:
    """One panel per training metric: (its name, title, unit, factor)."""
    p, said = results.plan, []
    if not wanted:
        return None, f"{what}: not recorded in this study."
    figure, axes = style.panels(len(wanted))
    for axis, (metric, title, unit, factor) in zip(axes, wanted, strict=True):
        labels = []
        for method in p.methods:
            rows = results.curves.get((model, method, metric), [])
            points = [(int(r["step"]), [float(r[c]) * factor for c in ("low", "mean", "high")]) for r in rows]
            points = _thinned([pt for pt in points if all(math.isfinite(v) for v in pt[1])])
            if not points:
                continue
            colour, _, _ = style.look(method, list(p.methods))
            x = [s for s, _ in points]
            low, y, high = ([v[i] for _, v in points] for i in range(3))
            axis.fill_between(x, low, high, color=colour, alpha=style.band(p.methods), linewidth=0)
            axis.plot(x, y, color=colour, linewidth=1.4, linestyle=style.dash(method, p.baseline))
            labels.append((x[-1], y[-1], p.label(method), colour))
            said.append(f"{title} of {p.label(method)} {y[0]:.3g} to {y[-1]:.3g}")
        axis.set_title(title + (f", {unit}" if unit else ""))
        finish(axis, labels)
    style.bottom(axes, "optimisation step")
    return figure, f"{what} over training: {'; '.join(said)}."


def time_by_phase(results: Results, model: str) -> Drawn:
    """A bar per method: seconds of a run, stacked by phase (means over its runs)."""
    p = results.plan
    seconds: dict[str, dict[str, list[float]]] = {}
    for r in results.timing:
        if r["stage"] == "train" and r["model"] == model and r["unit"] == "s" and r["value"]:
            seconds.setdefault(r["method"], {}).setdefault(r["phase"], []).append(float(r["value"]))
    shown = [m for m in p.methods if m in seconds]
    if not shown:
        return None, "No times on record yet."
    figure, (axis,) = style.panels(1, height=0.9 + 0.3 * len(shown))
    phases = [ph for ph in PHASES if any(ph in seconds[m] for m in shown)]
    ends = [0.0] * len(shown)
    for phase in phases:
        runs = [max(map(len, seconds[m].values())) for m in shown]
        widths = [sum(seconds[m].get(phase, [])) / n for m, n in zip(shown, runs, strict=True)]
        axis.barh(range(len(shown)), widths, left=ends, height=0.62, color=PHASES[phase], label=phase)
        ends = [a + b for a, b in zip(ends, widths, strict=True)]
    axis.set_yticks(range(len(shown)))
    axis.set_yticklabels([p.label(m) for m in shown])
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.grid(True, axis="x")
    axis.grid(False, axis="y")
    axis.set_xlabel("seconds of a run")
    axis.legend(ncols=len(phases), loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, handlelength=0.9)
    return figure, "Time of a training run by phase, one bar for each method; the table below it has the numbers."


def _thinned(points: list[tuple[int, list[float]]], most: int = 200) -> list[tuple[int, list[float]]]:
    """Means of neighbouring points where there are more than a screen can show."""
    width = -(-len(points) // most)
    if width <= 1:
        return points
    blocks = [points[i : i + width] for i in range(0, len(points), width)]
    return [(b[-1][0], [mean([v[j] for _, v in b]) for j in range(3)]) for b in blocks]

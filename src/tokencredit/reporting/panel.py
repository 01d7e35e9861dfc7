"""The report's section on the diagnostic panel: which tokens drift, and how sure the policy is of its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tokencredit.reporting import style
from tokencredit.reporting.inline import inline_svg, palette
from tokencredit.reporting.sections import Entry, Section
from tokencredit.reporting.text import fixed, listed

TITLE = "Drift and margins"
COLOUR, MARGIN_COLOUR = style.METHOD_STYLES["scapo"][0], style.METHOD_STYLES["mcpo"][0]
ENOUGH = 30  # tokens of a category below which its ratio is not told in words
FEW, MOST = 0.02, 0.8  # shares of hesitant tokens beyond which thresholds hardly tell tokens apart

Data = dict[str, Any]


def section(entries: Sequence[Entry], out: Path) -> Section:
    """Per policy: drift by category beside the paper's, one figure of four panels, and the margins' calibration."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    records = [(entry, entry.record()) for entry in entries]
    several = len({(e.name, e.model) for e in entries}) > 1
    published = _published()
    files: list[Path] = []
    policies = []
    for entry, record in records:
        if record is None:
            continue
        name = _name(entry, several)
        stem = out / f"analysis_panel_{entry.name}_{entry.model}_{entry.folder.parent.parent.name}"
        written, alt = _draw(record["results"], published, stem)
        files += written
        policies.append(
            {**_policy(name, record), "figure": Markup(inline_svg(written[0], alt, palette(style.METHOD_STYLES)))}
        )
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    html = environment.get_template("panel.html.j2").render(
        missing=[_name(e, several) for e, record in records if record is None],
        policies=policies,
        published=_published_rows(published),
        paper=published,
        paper_mean=f"{published['mean']:.4f}",
        paper_unchanged=fixed(published["unchanged"]),
        connectives=_connectives([record for _, record in records if record is not None]),
    )
    return Section(TITLE, html, tuple(files))


def _connectives(records: Sequence[Mapping[str, Any]]) -> str:
    """Where the discourse connectives come from."""
    counts = listed(sorted({str(record["connectives"]) for record in records}))
    told = f" ({counts} words)" if records else ""
    if all(record["spec"]["analysis"]["connectives"] is None for record in records):
        return f"The list of discourse connectives is our own{told}"
    return f"The discourse connectives{told} come from a lexicon that the study names"


def _published() -> Data:
    text = resources.files("tokencredit.reporting").joinpath("published.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["categories"]


def _published_rows(published: Data) -> dict[str, Data]:
    return {
        r["category"]: {"share": fixed(r["share"], 2), "mean": f"{r['mean']:.4f}", "relative": f"{r['relative']:.2f}"}
        for r in published["rows"]
    }


def _name(entry: Entry, several: bool) -> str:
    where = f", {entry.model}, {entry.label}" if several else ""
    return f"{entry.policy}{f', step {entry.step}' if entry.step else ''}{where}"


def _policy(name: str, record: Mapping[str, Any]) -> Data:
    r = record["results"]
    return {
        "name": name,
        "sentence": _sentence(r),
        "rows": [
            {
                "category": c["category"],
                "tokens": f"{c['tokens']:,}",
                "share": fixed(c["share"], 2),
                "mean": _four(c["mean"]),
                "relative": fixed(c["relative"], 2, 1.0),
                "span": _span(c, 2),
            }
            for c in r["categories"]
        ],
        "kinds": _kinds(r),
        "margin": _margin_words(r["margin"]),
    }


def _sentence(r: Mapping[str, Any]) -> str:
    d = r["drift"]
    first = f"{r['tokens']:,} tokens of {r['responses']:,} responses ({fixed(r['correct'])} % right). "
    if d["mean"] is None:
        return f"{first}None of the problems has a reworded form, so there is no drift to tell."
    u = d["unchanged"]
    return (
        f"{first}Mean drift {_four(d['mean'])} ({_span(d, 4)}). {fixed(d['exactly_zero'])} % of tokens have exactly "
        f"the same probability under every wording, {fixed(u['mean'])} % ({_span(u, 1, 100)}) drift by less than 1e-6. "
        f"{_most(r)}{_reader(r)}"
    )


def _reader(r: Mapping[str, Any]) -> str:
    """Who read the reworded prompts, where it was not the trainer."""
    gap = r.get("engine_gap")
    if not gap:
        return ""
    return (
        f" Reworded prompts were read by vLLM; on {gap['tokens']:,} tokens that the trainer read too, "
        f"log-probabilities differ by {gap['mean']:.1e} nats in the mean and {gap['largest']:.1e} at most."
    )


def _four(value: float | None) -> str:
    return fixed(value, 4, 1.0)


def _span(row: Mapping[str, Any], digits: int, scale: float = 1.0) -> str:
    """'0.12 to 0.34', or nothing."""
    if row["low"] is None:
        return ""
    return f"{fixed(row['low'], digits, scale)} to {fixed(row['high'], digits, scale)}"


def _kinds(r: Mapping[str, Any]) -> Data:
    """Mean drift under each kind alone: over all tokens with its interval, then by category."""
    kinds, shown = r["drift"]["kinds"], [c["category"] for c in r["categories"] if c["tokens"]]
    return {
        "names": [k["kind"].replace("_", " ") for k in kinds],
        "all": [{"mean": _four(k["mean"]), "span": _span(k, 4), "tokens": f"{k['tokens']:,}"} for k in kinds],
        "rows": [{"category": c, "values": [_four(k["categories"][c]) for k in kinds]} for c in shown],
    }


def _margin_words(m: Mapping[str, Any]) -> Data:
    if m["hesitant"] < FEW:
        verdict = "They single out almost nobody here: margin credit would be close to even credit."
    elif m["hesitant"] > MOST:
        verdict = "They single out most tokens here: margin credit would again be close to even."
    else:
        verdict = ""
    return {
        "mean": f"{m['mean']:.3f}",
        "entropy": f"{m['entropy_mean']:.3f}",
        "below": fixed(m["below"]),
        "above": fixed(m["above"]),
        "hesitant": fixed(m["hesitant"]),
        "gini": f"{m['gini']:.3f}",
        "weight_max": f"{m['weight_max']:.2f}",
        "low": f"{m['low']:g}",
        "high": f"{m['high']:g}",
        "verdict": verdict,
        "thresholds": [
            {"share": fixed(float(q), 0), "below": f"{low:.5f}", "above": f"{high:.5f}"}
            for q, (low, high) in m["thresholds"].items()
        ],
    }


def _most(r: Mapping[str, Any]) -> str:
    """Categories that drift clearly more than the average, in words; those with too few tokens are not judged."""
    clear = [c for c in r["categories"] if c["tokens"] >= ENOUGH and c["low"] is not None and c["low"] > 1]
    clear.sort(key=lambda c: -c["relative"])
    if not clear:
        return "No category drifts clearly more than the average."
    names = [f"{c['category']} ({c['relative']:.1f} times)" for c in clear]
    return f"Clearly above the average: {listed(names)}."


def _draw(r: Mapping[str, Any], published: Data, stem: Path) -> tuple[list[Path], str]:
    with style.house():
        figure, axes = style.panels(4, height=3.0)
        said = _categories(axes[0], r, published)
        _histogram(axes[1], r["drift"])
        _transitions(axes[2], r["transitions"])
        _margins(axes[3], r["margin"])
        return style.save(figure, stem), said


def _categories(axis: Any, r: Mapping[str, Any], published: Data) -> str:
    paper = {row["category"]: row["relative"] for row in published["rows"]}
    rows = r["categories"]
    for y, c in enumerate(rows):
        axis.plot([paper[c["category"]]], [y], "D", color=style.MUTED, markersize=4, fillstyle="none")
        if c["relative"] is None:
            continue
        axis.plot([c["low"], c["high"]], [y, y], color=COLOUR, linewidth=2.2)
        axis.plot([c["relative"]], [y], "^", color=COLOUR, markersize=6)
    axis.axvline(1, color=style.MUTED, linewidth=1.0)
    axis.set_yticks(range(len(rows)))
    axis.set_yticklabels([c["category"] for c in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.grid(True, axis="x")
    axis.grid(False, axis="y")
    axis.set_title("Drift over the mean (◇ paper's model)")
    told = [f"{c['category']} {c['relative']:.2f}" for c in rows if c["relative"] is not None]
    return f"Drift by category over the mean of all tokens: {listed(told)}. Then drift, transitions and margins."


def _histogram(axis: Any, d: Mapping[str, Any]) -> None:
    below, *counts = d["histogram"]
    edges, total = d["bins"], max(1, d["tokens"])
    heights = [c / total * 100 for c in counts]
    axis.bar(
        edges[:-1],
        heights,
        width=[b - a for a, b in pairwise(edges)],
        align="edge",
        color=COLOUR,
    )
    axis.bar([edges[0] / 2.2], [below / total * 100], width=edges[0] / 2.2, align="edge", color=style.MUTED)
    axis.set_xscale("log")
    axis.set_title("Tokens by mean drift, % (grey: unmoved)")
    axis.set_xlabel("drift")


def _transitions(axis: Any, t: Mapping[str, Any]) -> None:
    bins, counts = t["bins"], t["counts"]
    most = max((c for row in counts for c in row), default=1) or 1
    points = [((i + 0.5) / bins, (j + 0.5) / bins, c) for i, row in enumerate(counts) for j, c in enumerate(row) if c]
    if points:
        x, y, c = zip(*points, strict=True)
        sizes = [2 + 26 * math.log1p(v) / math.log1p(most) for v in c]
        axis.scatter(x, y, s=sizes, marker="s", color=COLOUR, alpha=0.75, linewidths=0)
    axis.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.8)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_title("Probability, clean to reworded (size: log count)")
    axis.set_xlabel("p under the problem as it is")


def _margins(axis: Any, m: Mapping[str, Any]) -> None:
    counts, total = m["histogram"], max(1, sum(m["histogram"]))
    width = 1 / len(counts)
    axis.bar(
        [i * width for i in range(len(counts))],
        [c / total * 100 for c in counts],
        width=width,
        align="edge",
        color=MARGIN_COLOUR,
    )
    for at in (m["low"], m["high"]):
        axis.axvline(at, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)))
    axis.set_yscale("log")
    axis.set_xlim(0, 1)
    axis.set_title("Tokens by margin, % (dashed: MCPO's thresholds)")
    axis.set_xlabel("top-2 margin")

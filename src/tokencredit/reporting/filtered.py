"""The report's section on d-filtered decoding: what it changes, and how much of that needs no look at drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from tokencredit.analysis.filtered_outcome import CONTROLS, FILTER, PLAIN
from tokencredit.reporting import style
from tokencredit.reporting.inline import inline_svg, palette
from tokencredit.reporting.sections import Entry, Section
from tokencredit.reporting.text import fixed, listed, signed

TITLE = "Filtered decoding"
NAMES = {
    FILTER: "Filter",
    PLAIN: "Plain sampling",
    "temperature": "Same entropy",
    "greedy": "Greedy",
    "random": "Random mask",
}
MARKERS = {FILTER: "^", "temperature": "o", "greedy": "s", "random": "D"}

Data = dict[str, Any]


def section(entries: Sequence[Entry], out: Path) -> Section:
    """Accuracy of every arm, the paired table, the mask, and one figure of gains, for every policy of `entries`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    records = [(entry, entry.record()) for entry in entries]
    several = len({(e.name, e.model) for e in entries}) > 1
    found = [(_name(e, several), record) for e, record in records if record is not None]
    files: list[Path] = []
    figure = ""
    if found:
        files, alt = _draw(found, out / "analysis_filtered")
        figure = Markup(inline_svg(files[0], alt, palette(style.METHOD_STYLES)))
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    html = environment.get_template("filtered.html.j2").render(
        missing=[_name(e, several) for e, record in records if record is None],
        policies=[_policy(name, record) for name, record in found],
        published=[_published(row) for row in _packaged()],
        figure=figure,
        cap=listed(sorted({fixed(record["spec"]["analysis"]["cap"], 0) for _, record in found})),
        clustered=any(record["results"]["samples"] > 1 for _, record in found),
        controls=any("greedy" in record["results"]["arms"] for _, record in found),
    )
    return Section(TITLE, html, tuple(files))


def _packaged() -> list[Data]:
    text = resources.files("tokencredit.reporting").joinpath("published.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["filtered"]


def _name(entry: Entry, several: bool) -> str:
    """'GRPO, step 80'; with its analysis and model where there are several."""
    where = f", {entry.model}, {entry.label}" if several else ""
    return f"{entry.policy}{f', step {entry.step}' if entry.step else ''}{where}"


def _policy(name: str, record: Mapping[str, Any]) -> Data:
    """One policy as text: its sentence, rows of its accuracy table, its pairs and its masks."""
    r = record["results"]
    gain = r["gains"][FILTER]
    arms = [arm for arm in (PLAIN, FILTER, *CONTROLS) if arm in r["arms"]]
    verdicts = dict.fromkeys(r["controls"][arm]["verdict"] for arm in arms if arm in r["controls"])
    return {
        "name": name,
        "sentence": (
            f"{fixed(r['arms'][FILTER]['accuracy'])} % right with the filter, {fixed(r['arms'][PLAIN]['accuracy'])} % "
            f"without: {signed(gain['gain'])} points (95 % interval {_span(gain['low'], gain['high'])}, "
            f"{r['arms'][FILTER]['problems']} problems, {r['samples']} sample{'' if r['samples'] == 1 else 's'} each)."
        ),
        "verdicts": [v.replace(" %", "\N{NO-BREAK SPACE}%") for v in verdicts],
        "arms": [_arm(arm, r) for arm in arms],
        "pairs": _pairs(r["paired"], r["samples"]),
        "mask": _mask(r["masks"][FILTER], r["matched"]),
        "random": _random(r["masks"]),
        "tokens": [{"token": t["token"], "count": f"{t['count']:,}"} for t in r["rejected_tokens"]],
        "left_out": record["left_out"],
        "perturbations": [{"kinds": k, "responses": f"{n:,}"} for k, n in r["perturbations"].items()],
    }


def _arm(arm: str, r: Mapping[str, Any]) -> Data:
    a, gain, control = r["arms"][arm], r["gains"].get(arm), r["controls"].get(arm)
    name = f"{NAMES[arm]}, T = {a['temperature']:.2f}" if arm == "temperature" else NAMES[arm]
    share = {"share": "", "share_span": "", "difference": "", "difference_span": ""}
    if control is not None:
        share["difference"] = signed(control["difference"])
        share["difference_span"] = _span(control["difference_low"], control["difference_high"])
        share["share"] = "no gain" if control["share"] is None else f"{fixed(control['share'], 0)} %"
        if control["share"] is not None:
            share["share_span"] = f"{fixed(control['low'], 0)} to {fixed(control['high'], 0)}"
    return {
        "name": name,
        "filter": arm == FILTER,
        "accuracy": fixed(a["accuracy"]),
        "span": f"{fixed(a['low'])} to {fixed(a['high'])}",
        "n": f"{a['n']:,}",
        "tokens": f"{a['tokens_mean']:,.1f}",
        "truncated": fixed(a["truncated"]),
        "gain": signed(gain["gain"]) if gain else "",
        "gain_span": _span(gain["low"], gain["high"]) if gain else "",
        **share,
    }


def _span(low: float, high: float) -> str:
    return f"{signed(low)} to {signed(high)}"


def _pairs(paired: Mapping[str, Any], samples: int) -> Data:
    names = ("both_right", "wrong_to_right", "right_to_wrong", "both_wrong", "n")
    first = paired["first_p"] if samples > 1 else None
    return {**{k: f"{paired[k]:,}" for k in names}, "p": _p(paired["p"]), "first_p": "" if first is None else _p(first)}


def _p(value: float) -> str:
    return "<\u00a00.0001" if value < 1e-4 else f"{value:.2g}"


def _mask(mask: Mapping[str, float], matched: Mapping[str, Any] | None) -> Data:
    temperature = "–"
    if matched is not None:
        edge = "" if matched["inside"] else (" or lower" if matched["target"] < matched["entropy"] else " or higher")
        temperature = f"{matched['temperature']:.2f}{edge}"
    return {
        "rejected": fixed(mask["rejected_per_response"], 2, 1.0),
        "share": fixed(mask["rejected_share"], 2),
        "mass": fixed(mask["masked_mass"], 2),
        "before": fixed(mask["clean_entropy"], 4, 1.0),
        "after": fixed(mask["entropy"], 4, 1.0),
        "temperature": temperature,
    }


def _random(masks: Mapping[str, Mapping[str, float]]) -> Data | None:
    if "random" not in masks:
        return None
    return {"budget": fixed(masks["random"]["budget"], 2), "mass": fixed(masks["random"]["masked_mass"], 2)}


def _published(row: Mapping[str, Any]) -> Data:
    counts = ("both_right", "wrong_to_right", "right_to_wrong", "both_wrong")
    return {
        **{k: f"{row[k]:,}" for k in counts},
        "n": f"{row['problems']:,}",
        "plain": fixed(row["plain"]),
        "filter": fixed(row["filter"]),
        "gain": signed(row["filter"] - row["plain"]),
        "rejected": fixed(row["rejected_per_response"], 2, 1.0),
        "share": fixed(row["rejected_share"], 2),
        "model": row["model"],
        "source": row["source"],
    }


def _draw(found: Sequence[tuple[str, Mapping[str, Any]]], stem: Path) -> tuple[list[Path], str]:
    """Gains over plain sampling with their intervals, one panel per policy -> files, alternative text."""
    said = []
    with style.house():
        arms = [a for a in (FILTER, *CONTROLS) if any(a in r["results"]["gains"] for _, r in found)]
        figure, axes = style.panels(len(found), height=0.8 + 0.32 * len(arms))
        for i, (axis, (name, record)) in enumerate(zip(axes, found, strict=True)):
            gains = record["results"]["gains"]
            for y, arm in enumerate(arms):
                if arm not in gains:
                    continue
                colour = style.METHOD_STYLES["scapo"][0] if arm == FILTER else style.MUTED
                low, middle, high = (gains[arm][k] * 100 for k in ("low", "gain", "high"))
                axis.plot([low, high], [y, y], color=colour, linewidth=2.2)
                axis.plot([middle], [y], MARKERS[arm], color=colour, markersize=6.5)
            axis.axvline(0, color=style.MUTED, linewidth=1.0)
            axis.set_title(name)
            axis.set_ylim(len(arms) - 0.5, -0.6)
            axis.set_yticks(range(len(arms)))
            first = axis.get_subplotspec().is_first_col()
            axis.set_yticklabels([NAMES[a] for a in arms] if first else [])
            axis.grid(True, axis="x")
            axis.grid(False, axis="y")
            axis.margins(x=0.08)
            shown = [f"{NAMES[a].lower()} {signed(gains[a]['gain'])}" for a in arms if a in gains]
            said.append(f"{found[i][0]}: {listed(shown)}")
        style.bottom(axes, "points above plain sampling")
        files = style.save(figure, stem)
    return files, f"Points of accuracy above plain sampling. {'; '.join(said)}."

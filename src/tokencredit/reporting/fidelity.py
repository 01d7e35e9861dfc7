"""The report's section on credit fidelity: whether each method's credit points at the tokens that decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.reporting import style
from tokencredit.reporting.inline import inline_svg, palette
from tokencredit.reporting.sections import Entry, Section
from tokencredit.reporting.text import fixed, listed
from tokencredit.study.tables import read_table

TITLE = "Credit fidelity"
CHANCE = 0.2  # of a constant credit, for the scores about a fifth of the tokens
COLUMNS = {  # score: (header, scale, digits)
    "rank": ("Rank correlation", 1.0, 2),
    "rank_open": ("uncertain tokens only", 1.0, 2),
    "top20": ("Effect in its top fifth, %", 100.0, 1),
    "top20_sq": ("squared, less noise, %", 100.0, 1),
    "mass20": ("Credit on the deciding fifth, %", 100.0, 1),
    "sign": ("Sign right, % of tokens", 100.0, 1),
    "sign_mass": ("% of effect", 100.0, 1),
    "planted": ("On planted-only tokens, %", 100.0, 1),
}
SIGNALS = {
    "signal:hesitation": "Hesitation (1 − margin)",
    "signal:entropy": "Entropy",
    "signal:surprisal": "Surprisal (−log p)",
    "signal:drift": "Drift under rewording",
}
REFERENCES = {
    "reference:uniform": "Constant",
    "reference:random": "Random",
    "reference:split_half": "Half of the samples",
    "reference:oracle": "The effects themselves",
}

Row = Mapping[str, Any]
Key = tuple[str, str, str]  # credit, score, category


@dataclass(frozen=True)
class Policy:
    """One analysed policy: its name, record, scores, and its methods in groups whose scores are all the same."""

    name: str
    record: Mapping[str, Any]
    scores: Mapping[Key, Row]
    groups: Sequence[tuple[str, ...]]
    labels: Mapping[str, str]

    def at(self, credit: str, score: str, category: str = "all") -> Row | None:
        """A score that exists, or None."""
        row = self.scores.get((credit, score, category))
        return row if row is not None and row["value"] is not None else None

    def label(self, group: Sequence[str]) -> str:
        return " / ".join(self.labels.get(m) or m for m in group)

    def constant(self, group: Sequence[str]) -> bool:
        """Whether these methods give every token of a response the same credit."""
        return all(
            a is not None and b is not None and a["value"] == b["value"]
            for score in ("rank", "top20", "mass20")
            for a, b in [(self.at(group[0], score), self.at("reference:uniform", score))]
        )

    @property
    def varied(self) -> list[tuple[str, ...]]:
        return [g for g in self.groups if not self.constant(g)]

    @property
    def categories(self) -> list[str]:
        """Token categories, those with most effect first."""
        found = {
            c: r["value"] or 0.0 for (k, s, c), r in self.scores.items() if (k, s) == ("reference:oracle", "share")
        }
        return sorted(found, key=lambda c: (-found[c], c))


def section(entries: Sequence[Entry], out: Path) -> Section:
    """Words, tables and two figures for every policy of `entries`; what has not been run is named."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    several = len({(e.name, e.model) for e in entries}) > 1
    missing, empty, found = [], [], []
    for entry in entries:
        record, name = entry.record(), _name(entry, several)
        if record is None:
            missing.append(name)
        elif not record["counts"]["measured"]:
            empty.append(name)
        else:
            found.append(_policy(name, record, entry))
    files: list[Path] = []
    figures = []
    for draw, title in (
        (_draw_top, "Effect in the fifth of tokens with most credit"),
        (_draw_categories, "By kind of token"),
    ):
        if found:
            drawn, alt, caption = draw(found, out)
            files += drawn
            colours = palette(dict.fromkeys([*found[0].labels, *style.METHOD_STYLES]))
            figures.append({"title": title, "svg": Markup(inline_svg(drawn[0], alt, colours)), "caption": caption})
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True,
    )  # fmt: skip
    html = environment.get_template("fidelity.html.j2").render(
        missing=missing,
        empty=empty,
        columns=[header for header, _, _ in COLUMNS.values()],
        policies=[_shown(p) for p in found],
        figures=figures,
        samples=listed(sorted({str(p.record["spec"]["analysis"]["samples"]) for p in found})),
        tolerance=listed(sorted({f"{p.record['spec']['analysis']['tolerance']:g}" for p in found})),
        planted=any(p.at("reference:uniform", "planted") for p in found),
        drift=any(p.at("signal:drift", "rank") for p in found),
    )
    return Section(TITLE, html, tuple(files))


def _name(entry: Entry, several: bool) -> str:
    """'GRPO, step 80'; with its analysis and model where there are several."""
    where = f", {entry.model}, {entry.label}" if several else ""
    return f"{entry.policy}{f', step {entry.step}' if entry.step else ''}{where}"


def _policy(name: str, record: Mapping[str, Any], entry: Entry) -> Policy:
    rows = read_table("fidelity_scores", entry.folder / "fidelity_scores.parquet").to_pylist()
    scores = {(r["credit"], r["score"], r["category"]): r for r in rows}
    present = {r["credit"] for r in rows if ":" not in r["credit"]}
    methods = [m for m in entry.labels if m in present] + sorted(present - set(entry.labels))
    groups: dict[tuple[Any, ...], list[str]] = {}
    for method in methods:
        mine = sorted((s, c, r["value"], r["low"], r["high"]) for (k, s, c), r in scores.items() if k == method)
        groups.setdefault(tuple(map(repr, mine)), []).append(method)
    return Policy(name, record, scores, [tuple(g) for g in groups.values()], entry.labels)


# --- what the page shows ---


def _shown(p: Policy) -> dict[str, Any]:
    rows = [_line(p, g[0], p.label(g), "constant" if p.constant(g) else "") for g in p.groups]
    rows += [_line(p, key, label, "signal") for key, label in SIGNALS.items() if p.at(key, "rank")]
    shown = [k for k in REFERENCES if k != "reference:uniform" or len(p.varied) == len(p.groups)]
    rows += [_line(p, key, REFERENCES[key], "reference") for key in shown]
    apart = [(p.label(g), g[0]) for g in p.varied] + [(label, key) for key, label in SIGNALS.items()]
    counts = p.record["counts"]
    return {
        "name": p.name,
        "facts": _facts(p),
        "verdicts": [*_verdicts(p), *_signal_verdicts(p)],
        "rows": rows,
        "shuffled": [_line(p, f"{g[0]}:shuffled", p.label(g), "") for g in p.varied],
        "apart": [
            {
                "name": label,
                "cells": [
                    _cell(p.at(key, score, side), *COLUMNS[score][1:])
                    for score in ("rank", "top20", "mass20")
                    for side in ("right", "wrong")
                ],
            }
            for label, key in apart
            if p.at(key, "rank", "right") or p.at(key, "rank", "wrong")
        ],
        "categories": [
            {"name": c, "cells": [_cell(p.at(k, "share", c), 100.0, 1) for k in _sharers(p)]} for c in p.categories
        ],
        "sharers": ["Tokens", "Effect", *(p.label(g) for g in p.varied)],
        "n": _size(counts),
        "chosen": p.record["chosen"],
    }


def _sharers(p: Policy) -> list[str]:
    return ["reference:uniform", "reference:oracle", *(g[0] for g in p.varied)]


def _line(p: Policy, credit: str, label: str, kind: str) -> dict[str, Any]:
    cells = [_cell(p.at(credit, score), *COLUMNS[score][1:]) for score in COLUMNS]
    return {"name": label, "kind": kind, "cells": cells}


def _cell(row: Row | None, scale: float, digits: int) -> dict[str, str]:
    """A score and its interval as text; the interval is left out where it has no width."""
    if row is None:
        return {"value": "–", "span": ""}
    low, high = fixed(row["low"], digits, scale), fixed(row["high"], digits, scale)
    return {"value": fixed(row["value"], digits, scale), "span": "" if low == high else f"{low} to {high}"}


def _size(counts: Mapping[str, int]) -> str:
    return f"{counts['measured']:,} responses to {counts['measured_problems']:,} problems, {counts['tokens']:,} tokens"


def _facts(p: Policy) -> str:
    r, n = p.record["results"], p.record["counts"]
    best = p.at("reference:oracle", "top20")
    text = (
        f"{_size(n)}, of a policy that is right in {fixed(r['accuracy'], 0)} % of all its responses. "
        f"{fixed(1 - r['settled'], 0)} % of the tokens were uncertain enough to be measured, with "
        f"{n['continuations']:,} continuations; the others did next to nothing."
    )
    if best:
        text += f" The fifth of the tokens that mattered most holds {fixed(best['value'], 0)} % of all effect."
    return text


def _verdicts(p: Policy) -> list[str]:
    """Where the methods' credit points and how much of it lies there, from the scores and their intervals alone."""
    best, ceiling = (p.at("reference:oracle", s) for s in ("top20", "mass20"))
    top, mass = (_ranked(p, score) for score in ("top20", "mass20"))
    if not (best and ceiling and top and mass):
        return ["Every method gives constant credit at its first update."]
    said = [
        f"Where it points: the fifth of the tokens with most credit holds, of the effect, {_listed(p, top)}. "
        f"A constant credit: 20 %; the effects themselves: {fixed(best['value'], 0)} %.",
        f"How much it moves: the fifth of the tokens that mattered most gets, of the credit, {_listed(p, mass)}. "
        f"A constant credit: 20 %; the effects themselves: {fixed(ceiling['value'], 0)} %.",
    ]
    low = [p.label(g) for g, row in top if row["high"] < CHANCE]
    if low:
        said.append(f"Away from what mattered: {listed(low)}.")
    split = {(right, wrong): [p.label(g) for g in p.varied if _sides(p, g) == (right, wrong)] for right, wrong in SIDES}
    said += [f"{listed(names)}: {SIDES[sides]}" for sides, names in split.items() if names]
    return said


SIDES = {  # direction of the rank correlation in right and in wrong responses
    (-1, 1): "less credit for the deciding tokens of right responses, more blame for those of wrong ones.",
    (1, -1): "more credit for the deciding tokens of right responses, less blame for those of wrong ones.",
    (-1, -1): "less credit, and less blame, for deciding tokens.",
}


def _sides(p: Policy, group: Sequence[str]) -> tuple[int, int]:
    """Sign of the rank correlation in right and in wrong responses; 0 where the interval holds 0."""
    rows = [p.at(group[0], "rank", side) for side in ("right", "wrong")]
    right, wrong = ((r["low"] > 0) - (r["high"] < 0) if r else 0 for r in rows)
    return right, wrong


def _ranked(p: Policy, score: str) -> list[tuple[tuple[str, ...], Row]]:
    """Methods whose credit varies, with a score, highest first."""
    rows = [(g, row) for g in p.varied if (row := p.at(g[0], score))]
    return sorted(rows, key=lambda item: -item[1]["value"])


def _listed(p: Policy, rows: Sequence[tuple[tuple[str, ...], Row]]) -> str:
    return listed([f"{p.label(g)} {fixed(row['value'], 0)} %" for g, row in rows])


def _signal_verdicts(p: Policy) -> list[str]:
    said = []
    for key, name, consequence in (
        ("signal:hesitation", "Hesitation", ""),
        ("signal:drift", "Drift", ": to lower the credit of tokens that drift is to lower that of tokens that decided"),
    ):
        rank, among = p.at(key, "rank"), p.at(key, "rank_open")
        if rank is None:
            continue
        if rank["low"] > 0:
            told = f"is higher where the effect is larger{consequence}"
        elif rank["high"] < 0:
            told = "is higher where the effect is smaller"
        else:
            told = "does not go with the effect"
        inside = f"; among uncertain tokens {_rank(among)}" if among else ""
        said.append(f"{name} {told} (rank correlation {_rank(rank)}{inside}).")
    return said


def _rank(row: Row) -> str:
    low, high = fixed(row["low"], 2, 1.0), fixed(row["high"], 2, 1.0)
    return f"{fixed(row['value'], 2, 1.0)}, {low} to {high}"


# --- figures ---


def _draw_top(found: Sequence[Policy], out: Path) -> tuple[list[Path], str, str]:
    """Share of the effect in each credit's top fifth, one panel per policy -> files, alternative text, caption."""
    groups = list(dict.fromkeys(g for p in found for g in p.varied))
    rows = [(found[0].label(g), g[0]) for g in groups] + [(label, key) for key, label in SIGNALS.items()]
    rows = [(label, key) for label, key in rows if any(p.at(key, "top20") for p in found)]
    said = []
    with style.house():
        figure, axes = style.panels(len(found), height=0.7 + 0.3 * len(rows))
        for axis, p in zip(axes, found, strict=True):
            for y, (_, key) in enumerate(rows):
                _mark(axis, p, key, y)
            axis.axvline(CHANCE * 100, color=style.MUTED, linewidth=1.0)
            ceiling = p.at("reference:split_half", "top20")
            if ceiling:
                axis.axvline(ceiling["value"] * 100, color=style.MUTED, linewidth=1.0, linestyle=(0, (2, 2)))
            axis.set_title(p.name)
            axis.set_xlim(0, 103)
            _rows_named(axis, [label for label, _ in rows])
            shown = [f"{label} {fixed(r['value'], 0)} %" for label, key in rows if (r := p.at(key, "top20"))]
            said.append(f"{p.name}: {listed(shown)}")
        style.bottom(axes, "% of the effect")
        files = style.save(figure, out / "analysis_fidelity_top")
    caption = (
        "Large marks: all responses, with 95 % intervals over problems; small ones below: right responses (circle) and "
        "wrong ones (cross) apart. Solid line: a constant credit; dotted line: half of the samples against the other. "
        "Grey: what a credit could look at."
    )
    return files, f"Share of the effect in the top fifth. {'; '.join(said)}.", caption


def _mark(axis: Any, p: Policy, key: str, y: int) -> None:
    row = p.at(key, "top20")
    if row is None:
        return
    colour, _, marker = (style.MUTED, "", "o") if key in SIGNALS else style.look(key, list(p.labels))
    axis.plot([row["low"] * 100, row["high"] * 100], [y, y], color=colour, linewidth=2.2)
    axis.plot([row["value"] * 100], [y], marker, color=colour, markersize=6.5)
    for side, shape in (("right", "o"), ("wrong", "x")):
        part = p.at(key, "top20", side)
        if part:
            axis.plot([part["value"] * 100], [y + 0.3], shape, color=colour, markersize=3.6, markerfacecolor="none")


def _draw_categories(found: Sequence[Policy], out: Path) -> tuple[list[Path], str, str]:
    """Shares of tokens, effect and credit by category, one panel per policy -> files, alternative text, caption."""
    categories = found[0].categories + sorted({c for p in found for c in p.categories} - set(found[0].categories))
    said = []
    with style.house():
        figure, axes = style.panels(len(found), height=0.8 + 0.26 * len(categories))
        for axis, p in zip(axes, found, strict=True):
            for y, category in enumerate(categories):
                tokens, effect = (p.at(f"reference:{k}", "share", category) for k in ("uniform", "oracle"))
                if tokens and effect:
                    axis.barh([y], [tokens["value"] * 100], height=0.62, color=style.GRID)
                    axis.plot([effect["low"] * 100, effect["high"] * 100], [y, y], color=style.INK, linewidth=1.6)
                    axis.plot([effect["value"] * 100], [y], "|", color=style.INK, markersize=13, markeredgewidth=2.4)
                for group in p.varied:
                    given = p.at(group[0], "share", category)
                    if given:
                        colour, _, marker = style.look(group[0], list(p.labels))
                        axis.plot([given["value"] * 100], [y], marker, color=colour, markersize=4.6)
            axis.set_title(p.name)
            axis.set_xlim(left=0)
            _rows_named(axis, categories)
            top = [c for c in p.categories[:3] if p.at("reference:oracle", "share", c)]
            said.append(f"{p.name}: most effect on {listed([f'{c} ({_percent(p, c)} %)' for c in top])}")
        style.bottom(axes, "% of tokens, effect, credit")
        files = style.save(figure, out / "analysis_fidelity_categories")
    names = list(dict.fromkeys(p.label(g) for p in found for g in p.varied))
    caption = (
        "Bars: share of the tokens, which is a constant credit's share too. Black: share of the effect. "
        f"Other marks: the credit of {listed(names)}."
    )
    return files, f"Shares by kind of token. {'; '.join(said)}.", caption


def _percent(p: Policy, category: str) -> str:
    row = p.at("reference:oracle", "share", category)
    return fixed(row["value"] if row else None, 0)


def _rows_named(axis: Any, names: Sequence[str]) -> None:
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_yticks(range(len(names)))
    axis.set_yticklabels(names if axis.get_subplotspec().is_first_col() else [])
    axis.grid(True, axis="x")
    axis.grid(False, axis="y")

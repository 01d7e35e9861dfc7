"""The report's section on completions: which problems a policy can finish that it was shown the beginning of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.reporting.rows import render
from tokencredit.reporting.sections import Entry, Section
from tokencredit.reporting.text import fixed, signed

TITLE = "Problems finished from memory"

Data = dict[str, Any]
Estimate = Mapping[str, float | None]


def section(entries: Sequence[Entry], out: Path) -> Section:
    """One sentence and one line per set for every policy of `entries`; what has not been run is named."""
    several = len({(e.name, e.model) for e in entries}) > 1
    found = [(entry, _name(entry, several), entry.record()) for entry in entries]
    html = render(
        "completion.html.j2",
        missing=[name for _, name, record in found if record is None],
        policies=[_policy(entry, name, record) for entry, name, record in found if record is not None],
    )
    return Section(TITLE, html)


def _name(entry: Entry, several: bool) -> str:
    where = f", {entry.model}, {entry.label}" if several else ""
    return f"{entry.policy}{f', step {entry.step}' if entry.step else ''}{where}"


def _policy(entry: Entry, name: str, record: Mapping[str, Any]) -> Data:
    results = record["results"]
    settings = record["spec"]["analysis"]
    rows = [
        _row(entry.set_label(s), r, results["against"].get(s), s in results["controls"])
        for s, r in ((name, results["sets"][name]) for name in settings["problems"])
    ]
    return {
        "name": name,
        "shown": fixed(settings["share"], 0),
        "verdicts": [
            verdict(entry.set_label(s), entry.set_label(results["control"]), results["against"][s])
            for s in settings["problems"]
            if s in results["against"]
        ],
        "control": entry.set_label(results["control"]) if results["control"] else "",
        "rows": rows,
        "left_out": sum(record["left_out"].values()),
    }


def verdict(label: str, control: str, against: Mapping[str, Estimate]) -> str:
    """What the difference to a control in exact completions and in ROUGE-L allows to say about one set."""
    exact, rouge = against["exact"], against["rouge_l"]
    size = f"{signed(exact['value'])} points ({_span(exact)}) exact, {signed(rouge['value'], 2, 1.0)} ROUGE-L"
    size += f" ({_span(rouge, 2, 1.0)})" if rouge["low"] is not None else ""
    above = [n for n, e in (("exact", exact), ("rouge", rouge)) if e["low"] is not None and e["low"] > 0]
    if above:
        return f"{label}: more is reproduced than of “{control}”, {size}. Some of it may have been read in training."
    return f"{label}: nothing shows that more is reproduced than of “{control}”, {size}."


def _row(label: str, r: Mapping[str, Any], against: Mapping[str, Estimate] | None, control: bool) -> Data:
    measures = [("exact", 1, 100.0), ("rouge_l", 2, 1.0), ("answer", 1, 100.0)]
    return {
        "label": label,
        "control": control,
        "problems": r["problems"],
        "cells": [
            {
                "value": fixed(r[m]["value"], digits, scale),
                "span": _span(r[m], digits, scale, plain=True),
                "difference": signed(against[m]["value"], digits, scale) if against else "",
                "difference_span": _span(against[m], digits, scale) if against else "",
            }
            for m, digits, scale in measures
        ],
    }


def _span(e: Estimate, digits: int = 1, scale: float = 100.0, plain: bool = False) -> str:
    if e["low"] is None:
        return ""
    show = fixed if plain else signed
    return f"{show(e['low'], digits, scale)} to {show(e['high'], digits, scale)}"

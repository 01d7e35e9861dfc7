"""The status of a study as text, and as one HTML page that stands alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from tokencredit.grid.status import STATES, Found, Status

COLOURS = {"done": "#2e7d52", "running": "#2b6cb0", "saved": "#8fb3d9", "failed": "#c0392b", "stale": "#d99a2b",
           "missing": "#e3e3e3"}  # fmt: skip
WORST = ("failed", "stale", "running", "saved", "missing", "done")  # what a square of several jobs shows
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } th, td { padding: .15rem .6rem; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { font-weight: 600 }
td.s { padding: 1px } td.s span { display: block; min-width: 1.4rem; height: 1.4rem; border-radius: 3px }
.grid { overflow-x: auto } .key span { display: inline-block; width: 1em; height: 1em; border-radius: 3px;
margin: 0 .3em 0 1em; vertical-align: -2px }
"""


def text(status: Status, lines: int = 10) -> str:
    """A table of stages by states, then why what is not done is not; at most `lines` jobs of a state (0: all)."""
    out = [f"{status.study}: {status.root}", f"  {'stage':<14}" + "".join(f"{name:>9}" for name in STATES)]
    for stage, count in status.counts().items():
        out.append(f"  {stage:<14}" + "".join(f"{count[name] or '.':>9}" for name in STATES))
    for state in ("running", "failed", "stale", "saved"):
        named = [one for one in status.found if one.state == state]
        shown = named if lines == 0 else named[:lines]
        out += [f"  {state}: {one.job.name}" + (f": {one.reason}" if one.reason else "") for one in shown]
        if len(shown) < len(named):
            out.append(f"  {state}: {len(named) - len(shown)} more (--all lists them)")
    if other := _other_code(status):
        out.append(f"  {other}")
    return "\n".join(out)


def page(all_of_them: list[Status]) -> str:
    """One page for some studies."""
    body = "".join(part for status in all_of_them for part in _study(status))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Status</title>"
        f"<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


def _study(status: Status) -> Iterator[str]:
    yield f"<h1>{escape(status.study)}</h1>\n<p><code>{escape(status.root)}</code> {escape(_other_code(status))}</p>\n"
    yield "<table><tr><th>stage</th>" + "".join(f"<th>{name}</th>" for name in STATES) + "</tr>\n"
    for stage, count in status.counts().items():
        numbers = "".join(f"<td class='n'>{count[name] or '·'}</td>" for name in STATES)
        yield f"<tr><td>{stage}</td>{numbers}</tr>\n"
    keys = "".join(f"<span style='background:{COLOURS[name]}'></span>{name}" for name in STATES)
    yield f"</table>\n<p class='key'>{keys}</p>\n"
    for stage in ("train", "evaluate", "analyse"):
        yield from _grid(stage, [one for one in status.found if one.job.stage == stage])
    waiting = [one for one in status.found if one.reason]
    if waiting:
        yield "<h2>Reasons</h2>\n<table>\n"
        for one in waiting:
            yield f"<tr><td>{one.state}</td><td>{escape(one.job.name)}</td><td>{escape(one.reason)}</td></tr>\n"
        yield "</table>\n"


def _grid(stage: str, found: list[Found]) -> Iterator[str]:
    """Rows are model and method, columns seeds; a square shows the worst of its jobs."""
    if not found:
        return
    columns = sorted({one.job.column for one in found}, key=int)
    squares: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        squares.setdefault((one.job.row, one.job.column), []).append(one)
    yield f"<h2>{stage}</h2>\n<div class='grid'><table><tr><th></th>"
    yield "".join(f"<th>{column}</th>" for column in columns) + "</tr>\n"
    for row in dict.fromkeys(one.job.row for one in found):
        cells = "".join(_square(squares.get((row, column), [])) for column in columns)
        yield f"<tr><td>{escape(row)}</td>{cells}</tr>\n"
    yield "</table></div>\n"


def _square(found: list[Found]) -> str:
    if not found:
        return "<td></td>"
    count = Counter(one.state for one in found)
    state = next(name for name in WORST if count[name])
    words = ", ".join(f"{count[name]} {name}" for name in STATES if count[name])
    reason = next((f": {one.reason}" for one in found if one.state == state and one.reason), "")
    return (
        f"<td class='s'><span style='background:{COLOURS[state]}' title='{escape(words + reason, True)}'></span></td>"
    )


def _other_code(status: Status) -> str:
    number = sum(one.other_code for one in status.found if one.state == "done")
    return f"{number} of what is done was made by other code (it is not made again for that)" if number else ""

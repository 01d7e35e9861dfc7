"""The report's section on variants: what an irrelevant clause, or noise, costs on the very same problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokencredit.analysis.plan import Plan
from tokencredit.analysis.variant_drops import UNTOUCHED, Drop, drops
from tokencredit.reporting.sections import Section
from tokencredit.reporting.text import fixed, interval, signed

TITLE = "Problems with something that must not matter"
NAMES = {
    "noop": "Irrelevant clause with a number",
    "noop_control": "Irrelevant clause without one",
    "scenario": "Other words in a frame",
    "characters": "Misspelt words",
    "words": "Words left out or doubled",
    "appended": "Meaningless end",
    UNTOUCHED: "the problem as it stands",
}


def section(root: Path | str, plan: Plan) -> Section | None:
    """Paired drops of every policy on every kind of variant; None where the study has no variants to pair."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    rows = [_row(drop, plan) for drop in drops(root, plan)]
    if not rows:
        return None
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    html = environment.get_template("variants.html.j2").render(rows=rows, several=len(plan.models) > 1)
    return Section(TITLE, html)


def _row(drop: Drop, plan: Plan) -> dict[str, Any]:
    return {
        "model": drop.model,
        "method": plan.label(drop.method),
        "kind": NAMES.get(drop.kind, drop.kind),
        "against": NAMES.get(drop.against, drop.against).lower(),
        "variant": fixed(drop.variant),
        "reference": fixed(drop.reference),
        "difference": signed(drop.comparison.difference),
        "interval": interval(drop.comparison),
        "problems": drop.comparison.n,
        "seeds": drop.seeds,
    }

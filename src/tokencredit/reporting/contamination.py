"""The report's section on dates: scores and gains on problems from before and after a base model's release."""

from __future__ import annotations

from typing import Any

from tokencredit.analysis.contamination import Score, groups, scores
from tokencredit.analysis.plan import BASE
from tokencredit.reporting.results import Results
from tokencredit.reporting.rows import render
from tokencredit.reporting.sections import Section
from tokencredit.reporting.text import fixed, interval, listed, signed
from tokencredit.study.config import Study

TITLE = "Before and after the release"
NAMES = {
    "before": "Published before or in its month",
    "after": "Published after",
    "both": "Some before, some after",
    "made": "Made here",
    "unknown": "Date not known",
}

Data = dict[str, Any]


def section(results: Results, study: Study) -> Section | None:
    """None where no model of the study has a day of release, or no benchmark a month of publication."""
    p = results.plan
    benchmarks = {b.name: study.benchmarks[b.name] for b in p.benchmarks}
    models = []
    for model in p.models:
        released = study.models[model].released
        found = groups(benchmarks, released)
        if released is None or not {"before", "after", "both"} & set(found):
            continue

        def values(method: str, benchmark: str, model: str = model) -> Any:
            return results.values(model, method, 0 if method == BASE else p.last, benchmark)

        rows, changes = scores(found, {BASE: "", **p.methods}, p.baseline, values)
        models.append(
            {
                "name": model,
                "released": f"{released:%Y-%m-%d}",
                "groups": [
                    {"name": NAMES[g], "benchmarks": listed([p.benchmark_label(n) for n in names])}
                    for g, names in found.items()
                ],
                "rows": [
                    {
                        "label": p.label(method),
                        "cells": [
                            next((_cell(r) for r in rows if (r.method, r.group) == (method, g)), None) for g in found
                        ],
                        "change": signed(changes[method].difference) if method in changes else "",
                        "change_span": interval(changes[method]) if method in changes else "",
                    }
                    for method in results.shown_methods()
                ],
                "compared": bool(changes),
            }
        )
    if not models:
        return None
    html = render("contamination.html.j2", models=models, several=len(p.models) > 1, baseline=p.label(p.baseline))
    return Section(TITLE, html)


def _cell(r: Score) -> Data:
    return {
        "value": fixed(r.value),
        "gain": signed(r.gain.difference) if r.gain else "",
        "span": interval(r.gain) if r.gain else "",
    }

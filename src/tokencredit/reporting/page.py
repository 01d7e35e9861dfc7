"""What the report page shows, as plain data; the template only lays it out."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokencredit.analysis.csvfile import number, read_csv
from tokencredit.analysis.plan import BASE, Plan, layout
from tokencredit.analysis.training_curves import read_record
from tokencredit.reporting import style
from tokencredit.reporting.inline import variable
from tokencredit.reporting.published import covers
from tokencredit.reporting.reach import reaches
from tokencredit.reporting.results import Results
from tokencredit.reporting.tables import Entry, entries
from tokencredit.reporting.text import duration, fixed, interval, signed
from tokencredit.reporting.training_plots import PHASES
from tokencredit.study.config import Study
from tokencredit.study.methods import Method, TokenClip
from tokencredit.study.tables import read_row, read_table

Data = dict[str, Any]


def method_look(p: Plan, method: str) -> Data:
    light, _, _ = style.look(method, list(p.methods))
    return {"name": method, "label": p.label(method), "colour": f"var({variable(light)})"}


def main_table(results: Results, model: str, opened: Container[str] = ()) -> Data:
    """Columns and rows of the main table, numbers as text; the headline's column first, where a phone shows it.

    opened: names of the responses that the page shows; their cells link to them.
    """
    p, shown = results.plan, results.shown_benchmarks()
    order = sorted(range(len(shown)), key=lambda i: shown[i] != results.headline)
    return {
        "columns": [p.benchmark_label(shown[i]) for i in order],
        "rows": [
            {
                **method_look(p, method),
                "baseline": method == p.baseline,
                "cells": [
                    {**_cell(p, row[i]), "link": name if (name := place(model, method, shown[i])) in opened else ""}
                    for i in order
                ],
            }
            for method, row in entries(results, model).items()
        ],
    }


def _cell(p: Plan, e: Entry) -> Data:
    r, challenger = e.pair, e.method in p.challengers
    return {
        "missing": e.mean is None,
        "macro": e.benchmark in p.means,
        "mean": fixed(e.mean),
        "sd": fixed(e.sd) if e.sd is not None else "",
        "part": f"{e.seeds} of {e.of} seeds" if 0 < e.seeds < e.of else "",
        "compared": challenger and r is not None,
        "waiting": challenger and r is None and e.mean is not None,
        "difference": signed(r.difference) if r else "",
        "interval": interval(r) if r else "",
        "evidence": ("above" if r.difference > 0 else "below") if r and r.evidence else "",
    }


def coverage(results: Results, root: Path) -> Data:
    """How much of the grid is there, and what is not."""
    p, place = results.plan, layout(root)
    gaps = [r for r in results.missing if r["benchmark"] not in p.means]
    total = sum(len(p.benchmarks_at(c.method, s)) for c, s in p.checkpoints())
    untrained = [c.id for c in p.runs() if not Path(place.train(c, "metrics.parquet")).exists()]
    return {
        "total": total,
        "have": total - len(gaps),
        "runs": len(p.runs()),
        "trained": len(p.runs()) - len(untrained),
        "untrained": untrained,
        "missing": [
            f"{r['model']}.{r['method']}.seed{r['seed']}, step {r['step']}, {p.benchmark_label(r['benchmark'])}"
            for r in gaps
        ],
    }


def reached(results: Results, model: str) -> list[Data]:
    """Steps to the baseline's final accuracy, as text."""
    p = results.plan
    return [
        {
            "benchmark": p.benchmark_label(r.benchmark),
            "method": p.label(r.method),
            "goal": fixed(r.goal),
            "step": "not reached" if r.step is None else f"{r.step:.0f}",
            "share": "" if r.step is None else fixed(r.step / p.last, 0),
        }
        for r in reaches(results, model)
    ]


def graders(p: Plan, analysis: Path) -> Data:
    """Both graders over the final checkpoints and the base, per benchmark; statuses other than ok."""
    totals: dict[str, dict[str, int]] = {}
    counted = ("samples", "correct", "ours_only", "library_only", "no_box", "unclosed", "refused", "timeout")
    for r in read_csv(analysis / "grading.csv"):
        if r["method"] != BASE and int(r["step"]) != p.last:
            continue
        into = totals.setdefault(r["benchmark"], dict.fromkeys((*counted, "broken", "library", "asked"), 0))
        for key in counted:
            into[key] += int(r[key])
        into["broken"] += int(r["unparsable"]) + int(r["other"])
        if r["correct_library"]:
            into["library"] += int(r["correct_library"])
            into["asked"] += int(r["samples"])
    rows = []
    for b in p.benchmarks:
        t = totals.get(b.name)
        if t:
            differ = t["ours_only"] + t["library_only"]
            shares = {"ours": fixed(t["correct"] / t["samples"]), "library": "–", "differ": "–"}
            if t["asked"]:
                shares |= {"library": fixed(t["library"] / t["asked"]), "differ": fixed(differ / t["asked"], 2)}
            rows.append({"label": b.label, **t, **shares})
    return {"rows": rows}


def timing(results: Results, analysis: Path) -> Data:
    """Seconds by stage, and each method's training by phase (means over its runs)."""
    p = results.plan
    stages: dict[str, float] = {}
    runs: dict[tuple[str, str], dict[str, list[float]]] = {}
    for r in read_csv(analysis / "timing.csv"):
        value = number(r["value"]) or 0.0
        if r["unit"] == "s":
            stages[r["stage"]] = stages.get(r["stage"], 0.0) + value
        if r["stage"] == "train":
            runs.setdefault((r["model"], r["method"]), {}).setdefault(r["phase"], []).append(value)
    order = ("problems", "semifactuals", "base", "train", "evaluate")
    names = {"base": "base models", "train": "training", "evaluate": "evaluation", "semifactuals": "perturbations"}
    total = sum(stages.values())
    return {
        "stages": [
            {"name": names.get(s, s), "time": duration(stages[s]), "share": stages[s] / total if total else 0.0}
            for s in order
            if s in stages
        ],
        "total": duration(total) if stages else "–",
        "methods": [
            {"model": model, **method_look(p, method), **_run_time(runs[model, method])}
            for model in p.models
            for method in p.methods
            if (model, method) in runs
        ],
        "phases": [ph for ph in PHASES if any(ph in phases for phases in runs.values())],
    }


def _run_time(phases: Mapping[str, list[float]]) -> Data:
    number_of = max(len(v) for v in phases.values())
    means = {ph: sum(v) / number_of for ph, v in phases.items()}
    clock = {ph: means[ph] for ph in PHASES if ph in means}
    total = sum(clock.values())
    speed, memory = means.get("tokens_per_second"), means.get("peak_memory")
    return {
        "runs": number_of,
        "time": duration(total),
        "parts": {ph: {"time": duration(v), "share": v / total if total else 0.0} for ph, v in clock.items()},
        "speed": f"{speed:,.0f}" if speed else "–",
        "memory": f"{memory:,.0f}" if memory else "–",
    }


def place(model: str, method: str, benchmark: str) -> str:
    """Where on the page the responses of a cell of the main table stand."""
    return f"responses-{model}-{method}-{benchmark}"


def examples(p: Plan, root: Path, limit: int = 4000) -> list[Data]:
    """Per model, method and benchmark, the first right and the first wrong response of the grid's first seed."""
    shelf, found = layout(root), []
    for model in p.models:
        for cell, step in p.checkpoints():
            last = cell.seed == p.seeds[0] and step == p.last
            if cell.model != model or not (cell.method == BASE or last):
                continue
            for b in p.benchmarks_at(cell.method, step):
                path = Path(shelf.samples(cell, step, b.name))
                if path.exists():
                    asked = _problems(Path(shelf.benchmark(b.name)))
                    found.append(
                        {
                            "place": place(model, cell.method, b.name),
                            "model": model, **method_look(p, cell.method), "seed": cell.seed, "step": step,
                            "benchmark": b.label, "responses": list(_first_two(path, asked, limit)),
                            "file": str(path.relative_to(root)),
                        }
                    )  # fmt: skip
    return found


def _problems(path: Path) -> dict[str, Data]:
    if not path.exists():
        return {}
    rows = read_table("problems", path, ("problem_id", "problem", "answer")).to_pylist()
    return {r["problem_id"]: r for r in rows}


def _first_two(path: Path, asked: Mapping[str, Data], limit: int) -> Iterator[Data]:
    """The first right and the first wrong response, by problem and sample; texts of the others are not read."""
    keys = read_table("samples", path, ("problem_id", "sample", "correct")).to_pylist()
    for right in (True, False):
        found = [(r["problem_id"], r["sample"], i) for i, r in enumerate(keys) if r["correct"] is right]
        if not found:
            continue
        r = read_row(path, min(found)[2])
        cut = max(0, len(r["text"]) - limit)
        yield {
            **r,
            "text": r["text"][:limit],
            "cut": cut,
            "problem": asked.get(r["problem_id"], {}).get("problem", ""),
            "gold": asked.get(r["problem_id"], {}).get("answer", "not known"),
        }


def provenance(p: Plan, root: Path) -> Data:
    """What every record under `root` says it came from; values that differ between records are all shown."""
    values: dict[str, dict[str, int]] = {}
    inputs: dict[str, set[str]] = {}
    count = 0
    for path, record in _records(p, root):
        origin = record.get("provenance")
        if not isinstance(origin, dict):
            continue
        count += 1
        for key, value in _flat({k: v for k, v in origin.items() if k != "inputs"}):
            values.setdefault(key, {}).setdefault(_shown(value), 0)
            values[key][_shown(value)] += 1
        files = dict(origin.get("inputs", {})) if "eval" not in path.parts else {}
        files |= {f"{path.parent.name}/{k}": v.get("sha256", "") for k, v in _files(record)}
        if isinstance(record.get("digests"), dict) and record["digests"].get("output"):
            files[f"{path.stem} (as built)"] = record["digests"]["output"]
        for name, digest in files.items():
            inputs.setdefault(name, set()).add(str(digest))
    return {
        "records": count,
        "rows": [
            {"key": key, "values": sorted(found.items(), key=lambda item: (-item[1], item[0]))}
            for key, found in values.items()
        ],
        "inputs": [{"name": n, "digests": sorted(d)} for n, d in sorted(inputs.items())],
    }


def _records(p: Plan, root: Path) -> Iterator[tuple[Path, Data]]:
    place = layout(root)
    paths = [place.problems, *(place.benchmark(b.name) for b in p.benchmarks), place.semifactuals]
    paths += [place.base(m) for m in p.models] + [place.train(c, "train.json") for c in p.runs()]
    paths += [place.samples(c, s, b.name) for c, s in p.checkpoints() for b in p.benchmarks_at(c.method, s)]
    for file in paths:
        path = Path(file).with_suffix(".json")
        record = read_record(path)
        if record is not None:
            yield path, record


def _files(record: Data) -> Iterator[tuple[str, Data]]:
    files = record.get("files")
    if isinstance(files, dict):
        yield from ((k, v) for k, v in files.items() if isinstance(v, dict))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key == "libraries" and isinstance(value, Mapping):
            yield key, ", ".join(f"{name} {version}" for name, version in sorted(value.items()))
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value or "not known"
    return {True: "yes", False: "no"}.get(value, json.dumps(value)) if isinstance(value, bool) else json.dumps(value)


def for_parts(rows: Iterable[Data], methods: Iterable[Method]) -> list[Data]:
    """Rows of a YAML list that concern a part (credit, objective, setting) of one of `methods`, or all of them."""
    used = {part for m in methods for part in m.parts}
    return [r for r in rows if not r["parts"] or used & set(r["parts"])]


def same_with_one_update(study: Study) -> list[str]:
    """Labels of methods that one update per rollout makes the baseline itself: every ratio is 1 there."""
    if study.training.updates > 1 or study.grid.baseline not in study.grid.methods:
        return []

    def first_update(m: Method) -> Method:
        credit = tuple(c for c in m.credit if c.kind != "future_kl")
        return m.model_copy(update={"label": "", "objective": TokenClip(), "credit": credit})

    base = first_update(study.methods[study.grid.baseline])
    others = [m for m in study.grid.methods if m != study.grid.baseline]
    return [study.methods[m].label or m for m in others if first_update(study.methods[m]) == base]


def _place(spans: list[tuple[float | None, float | None]], value: float) -> str:
    """Where a published difference lies for our interval; nothing without one, or with several models."""
    inside = covers(spans[0], value) if len(spans) == 1 else None
    return {True: "inside our interval", False: "outside our interval", None: ""}[inside]


def published(results: Results, values: Data) -> Data:
    """Published differences beside ours, each with the model it was measured on."""
    p, rows = results.plan, []
    for method in p.challengers:
        here = [(m, results.pair(m, method, results.headline)) for m in p.models]
        spans = [(r.low, r.high) for _, r in here if r is not None]
        theirs = [
            {
                "place": _place(spans, d["difference"] / 100),
                "model": d["model"],
                "difference": signed(d["difference"], 2, 1.0),
                "interval": f"{signed(d['low'], 1, 1.0)} to {signed(d['high'], 1, 1.0)}" if "low" in d else "",
                "seeds": d.get("seeds"),
                "measure": d["measure"],
                "source": d["source"],
            }
            for d in values["differences"]
            if d["method"] == method
        ]
        ours = [
            {"model": model, "difference": signed(r.difference, 2), "interval": interval(r), "seeds": r.n}
            for model, r in here
            if r is not None
        ]
        if theirs:
            rows.append({**method_look(p, method), "ours": ours, "theirs": theirs})
    notes = [n["text"] for n in values["notes"] if n["method"] in p.methods]
    return {"rows": rows, "notes": notes}

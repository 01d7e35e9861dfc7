"""The grid's results in small files: summary, paired, paired_problems, intervals, grading, curves; and timing.

What is expected comes from the spec, what exists from the files; an expected checkpoint without its file
is a row without a value, never a smaller mean. All files but timing.csv (wall clock) have bytes that depend on
nothing but the sample and metric tables.

| file | one row per | holds |
|---|---|---|
| summary.csv | checkpoint, benchmark, metric, k | avg, pass, length_mean, truncated; `macro` or averages: plain means |
| paired.csv | method, benchmark, step, metric, k | method minus baseline over the seeds both have |
| paired_problems.csv | method, benchmark | the same at the last step over problems, and redrawing both |
| intervals.csv | method, benchmark, part of a pooled set | accuracy at the last step with its 95 % interval |
| grading.csv | checkpoint, benchmark | both graders' accuracies, how often they differ, statuses |
| curves.csv | method, step, training metric | mean and spread over seeds |
| timing.csv | cell, stage, phase | seconds, and peak memory and throughput of training |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tokencredit.analysis import comparisons, intervals
from tokencredit.analysis.csvfile import write_csv
from tokencredit.analysis.plan import Plan, layout, plan
from tokencredit.analysis.questions import questions
from tokencredit.analysis.training_curves import write_curves, write_timing
from tokencredit.evaluation import compare
from tokencredit.evaluation.metrics import Outcomes, macro_mean, read_outcomes, summarise
from tokencredit.study.errors import UserError
from tokencredit.study.grid import Cell
from tokencredit.study.seeds import derive

SUMMARY = (
    "study", "model", "method", "seed", "step", "benchmark", "metric", "k", "value", "problems", "samples",
)  # fmt: skip
PAIRED = (
    "study", "model", "method", "baseline", "benchmark", "step", "metric", "k", "difference", "se", "t", "p",
    "low", "high", "sign_flip_p", "p_holm", "seeds", "seeds_expected", "seed_values",
)  # fmt: skip
PAIRED_PROBLEMS = (
    "study", "model", "method", "baseline", "benchmark", "step", "difference", "se", "low", "high", "problems",
    "boot_sd", "boot_low", "boot_high", "seeds", "seeds_expected",
)  # fmt: skip
STATUSES = ("ok", "no_box", "unclosed", "refused", "timeout", "unparsable")
GRADING = (
    "study", "model", "method", "seed", "step", "benchmark", "samples", "correct", "correct_library",
    "ours_only", "library_only", *STATUSES, "other",
)  # fmt: skip

Found = dict[tuple[Cell, int, str], Outcomes]
Scores = dict[tuple[str, str, int, str, str, int], dict[int, float]]  # model, method, step, benchmark, metric, k


def aggregate(spec: Mapping[str, Any], root: Path | str, out: Path | str) -> dict[str, Path]:
    """Write the study's aggregate files into `out`. Returns name -> path.

    spec: the `aggregate` spec of study/grid.py; root: results/{study}. Files that are absent are missing
    cells; a damaged one, or one whose problems differ from its siblings', raises UserError.
    """
    expected, out = plan(spec), Path(out)
    found = _read(expected, root)
    rows = _summary_rows(expected, found)
    scores, origins = _scores(rows), questions(expected, root)
    levels = intervals.rows(expected, found, origins, intervals.parts(expected, root))
    return {
        "summary": write_csv(out / "summary.csv", SUMMARY, rows, keys=8),
        "paired": write_csv(out / "paired.csv", PAIRED, _paired_rows(expected, scores), keys=8),
        "paired_problems": write_csv(
            out / "paired_problems.csv", PAIRED_PROBLEMS, _problem_rows(expected, found), keys=6
        ),
        "grading": write_csv(out / "grading.csv", GRADING, _grading_rows(expected, found), keys=6),
        "intervals": write_csv(out / "intervals.csv", intervals.COLUMNS, levels, keys=6),
        **comparisons.write(expected, found, origins, out),
        "curves": write_curves(expected, root, out / "curves.csv"),
        "timing": write_timing(expected, root, out / "timing.csv"),
    }


def _read(expected: Plan, root: Path | str) -> Found:
    """Outcomes of every expected sample file that exists; all of one benchmark ask the same problems."""
    from tqdm import tqdm

    place = layout(root)
    found: Found = {}
    asked: dict[str, tuple[tuple[str, ...], Path]] = {}
    todo = [(c, s, b.name) for c, s in expected.checkpoints() for b in expected.benchmarks_at(c.method, s)]
    for cell, step, name in tqdm(todo, desc="samples", mininterval=2, disable=None):
        path = Path(place.samples(cell, step, name))
        if not path.exists():
            continue
        result = found[cell, step, name] = read_outcomes(path)
        first = asked.setdefault(name, (result.problems, path))
        if first[0] != result.problems:
            raise UserError(
                f"{path}: asks other problems than {first[1]}; the benchmark changed between the two: "
                f"delete both and run snakemake again"
            )
    return found


def _summary_rows(expected: Plan, found: Found) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for cell, step in expected.checkpoints():
        asked = expected.benchmarks_at(cell.method, step)
        head = {"study": expected.study, **vars(cell), "step": step}
        have = {b.name: found[cell, step, b.name] for b in asked if (cell, step, b.name) in found}
        for b in asked:
            if b.name not in have:
                rows.append(_row(head, b.name, ("avg", b.samples), None, 0, 0))
        values = {name: summarise(result) for name, result in have.items()}
        for name, result in have.items():
            sizes = len(result.problems), int(result.samples.sum())
            rows += [_row(head, name, key, value, *sizes) for key, value in values[name].items()]
        for mean, of in expected.means_at(cell.method, step).items():
            parts = [have[name] for name in of if name in have]
            if len(parts) < len(of):
                rows.append(_row(head, mean, ("avg", expected.least_samples(of)), None, 0, 0))
                continue
            total = sum(len(r.problems) for r in parts), sum(int(r.samples.sum()) for r in parts)
            rows += [_row(head, mean, key, v, *total) for key, v in _macro([values[name] for name in of]).items()]
    return rows


def _row(
    head: dict[str, Any], benchmark: str, key: tuple[str, int], value: float | None, problems: int, samples: int
) -> dict[str, Any]:
    return {
        **head, "benchmark": benchmark, "metric": key[0], "k": key[1],
        "value": value, "problems": problems, "samples": samples,
    }  # fmt: skip


def _macro(values: list[dict[tuple[str, int], float]]) -> dict[tuple[str, int], float]:
    """Mean over benchmarks: pass@k for every k that all of them have; else k is the smallest number of samples."""
    out = {}
    for metric in ("avg", "length_mean", "truncated"):
        each = [next((k, v) for (name, k), v in one.items() if name == metric) for one in values]
        out[metric, min(k for k, _ in each)] = macro_mean([v for _, v in each])
    for key in values[0]:
        if key[0] == "pass" and all(key in one for one in values):
            out[key] = macro_mean([one[key] for one in values])
    return out


def _scores(rows: Iterable[Mapping[str, Any]]) -> Scores:
    """Values by seed."""
    scores: Scores = {}
    for r in rows:
        if r["value"] is not None:
            key = (r["model"], r["method"], r["step"], r["benchmark"], r["metric"], r["k"])
            scores.setdefault(key, {})[r["seed"]] = r["value"]
    return scores


def _paired_rows(expected: Plan, scores: Scores) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    families: dict[tuple, list[dict[str, Any]]] = {}
    keys = {k for k in scores if k[1] in expected.challengers}
    # a comparison that has no value yet still is a row, so that its absence is seen
    for model in expected.models:
        for method in expected.challengers:
            for step in expected.steps:
                asked = expected.benchmarks_at(method, step)
                names = [(b.name, b.samples) for b in asked]
                names += [(m, expected.least_samples(of)) for m, of in expected.means_at(method, step).items()]
                keys |= {
                    (model, method, step, n, "avg", k) for n, k in names if not _has_avg(scores, model, method, step, n)
                }
    for model, method, step, benchmark, metric, k in sorted(keys):
        ours = scores.get((model, method, step, benchmark, metric, k), {})
        theirs = scores.get((model, expected.baseline, step, benchmark, metric, k), {})
        r = compare.over_seeds(ours, theirs)
        row = {
            "study": expected.study, "model": model, "method": method, "baseline": expected.baseline,
            "benchmark": benchmark, "step": step, "metric": metric, "k": k,
            **{c: getattr(r, c, None) for c in ("difference", "se", "t", "p", "low", "high", "sign_flip_p")},
            "p_holm": None, "seeds": r.n if r else 0, "seeds_expected": len(expected.seeds),
            "seed_values": " ".join(f"{s}:{v:.10g}" for s, v in r.values.items()) if r else "",
        }  # fmt: skip
        rows.append(row)
        families.setdefault((model, step, benchmark, metric, k), []).append(row)
    for family in families.values():
        tested = [row for row in family if row["p"] is not None]
        for row, p in zip(tested, compare.holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = p
    return rows


def _has_avg(scores: Scores, model: str, method: str, step: int, benchmark: str) -> bool:
    return any(key[:5] == (model, method, step, benchmark, "avg") for key in scores)


def _problem_rows(expected: Plan, found: Found) -> list[dict[str, Any]]:
    """Comparisons at the last step that redraw the problems: clustered, and seeds, problems, samples together."""
    rows = []
    names = sorted(b.name for b in expected.benchmarks)  # the draws follow this order, not the grid's
    for model in expected.models:
        for method in expected.challengers:
            for benchmark in [*names, *expected.means]:
                strata = sorted(expected.means.get(benchmark, (benchmark,)))
                seeds = [
                    s
                    for s in sorted(expected.seeds)
                    if all(
                        (Cell(model, m, s), expected.last, b) in found
                        for m in (method, expected.baseline)
                        for b in strata
                    )
                ]
                rows.append(
                    {
                        "study": expected.study, "model": model, "method": method,
                        "baseline": expected.baseline, "benchmark": benchmark, "step": expected.last,
                        **_over_problems(expected, found, model, method, strata, seeds),
                        "seeds": len(seeds), "seeds_expected": len(expected.seeds),
                    }
                )  # fmt: skip
    return rows


def _over_problems(
    expected: Plan, found: Found, model: str, method: str, strata: list[str], seeds: list[int]
) -> dict[str, Any]:
    empty = dict.fromkeys(("difference", "se", "low", "high", "boot_sd", "boot_low", "boot_high"))
    if not seeds:
        return {**empty, "problems": 0}

    def stack(name: str, benchmark: str) -> list[Outcomes]:
        return [found[Cell(model, name, s), expected.last, benchmark] for s in seeds]

    pairs = [(stack(method, b), stack(expected.baseline, b)) for b in strata]
    parts = [
        compare.over_problems(np.mean([r.rate for r in a], axis=0), np.mean([r.rate for r in b], axis=0))
        for a, b in pairs
    ]
    r = parts[0] if len(parts) == 1 else compare.over_strata(parts)
    out = {**empty, "problems": sum(len(a[0].problems) for a, _ in pairs)}
    out["difference"] = macro_mean([part.difference for part in parts])
    if r is not None:
        out |= {"se": r.se, "low": r.low, "high": r.high}
    drawn = [{int(n) for o in (*a, *b) for n in np.unique(o.samples)} for a, b in pairs]
    if all(len(n) == 1 for n in drawn):
        boot = compare.hierarchical_bootstrap(
            [np.stack([o.correct for o in a]) for a, _ in pairs],
            [np.stack([o.correct for o in b]) for _, b in pairs],
            [n.pop() for n in drawn],
            seed=derive("bootstrap", expected.study, model, method, *strata),
        )
        out |= {"boot_sd": boot.sd, "boot_low": boot.low, "boot_high": boot.high}
    return out


def _grading_rows(expected: Plan, found: Found) -> list[dict[str, Any]]:
    rows = []
    for (cell, step, name), r in found.items():
        known = {s: r.statuses.get(s, 0) for s in STATUSES}
        rows.append(
            {
                "study": expected.study, **vars(cell), "step": step, "benchmark": name,
                "samples": int(r.samples.sum()), "correct": int(r.correct.sum()),
                "correct_library": int(r.library.sum()) if (r.library >= 0).all() else None,
                "ours_only": r.ours_only, "library_only": r.library_only,
                **known, "other": sum(r.statuses.values()) - sum(known.values()),
            }
        )  # fmt: skip
    return rows

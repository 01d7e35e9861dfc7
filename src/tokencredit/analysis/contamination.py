"""Accuracy and gain on problems from before and from after the base model's release.

A model cannot have read what was published after it. Benchmarks fall into the groups of study/dates.py by the months in
which their problems were first public (setting `published`, known for the registry's sets) and the model's day of
release (`released`).

A group's score is the mean over its benchmarks, per seed. Groups differ in difficulty, so that a higher score before
proves nothing; a gain that is larger before than after is what memory would look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date

from tokencredit.analysis.plan import BASE
from tokencredit.evaluation.compare import Comparison, over_seeds
from tokencredit.evaluation.metrics import mean
from tokencredit.study.config import Benchmark
from tokencredit.study.dates import GROUPS, group_of

Values = Callable[[str, str], Mapping[int, float]]  # (method, benchmark) -> seed -> accuracy at the last step


@dataclass(frozen=True)
class Score:
    """One method on one group. gain: to the baseline; None for it, the base model, or without a seed in common."""

    method: str
    group: str
    value: float
    seeds: int
    gain: Comparison | None


def groups(benchmarks: Mapping[str, Benchmark], released: date | None) -> dict[str, tuple[str, ...]]:
    """Group -> its benchmarks, in the order of GROUPS; groups without any are left out."""
    found = {name: group_of(b.published, released, b.source.kind == "synthetic") for name, b in benchmarks.items()}
    return {g: names for g in GROUPS if (names := tuple(n for n, own in found.items() if own == g))}


def scores(
    found: Mapping[str, tuple[str, ...]], methods: Mapping[str, str], baseline: str, values: Values
) -> tuple[list[Score], dict[str, Comparison]]:
    """Every method on every group; method -> its gain before minus its gain after, over the seeds that have both."""
    out: list[Score] = []
    gains: dict[tuple[str, str], Comparison | None] = {}
    for group, names in found.items():
        theirs = _mean(names, baseline, values)
        for method in methods:
            ours = _mean(names, method, values)
            if ours:
                gain = over_seeds(ours, theirs) if method not in (baseline, BASE) else None
                gains[method, group] = gain
                out.append(Score(method, group, mean(list(ours.values())), len(ours), gain))
    changes = {}
    for method in methods:
        before, after = (gains.get((method, group)) for group in ("before", "after"))
        if before is not None and after is not None:
            a, b = ({s: v for s, v in r.values.items() if isinstance(s, int)} for r in (before, after))
            change = over_seeds(a, b)
            if change is not None:
                changes[method] = change
    return out, changes


def _mean(names: tuple[str, ...], method: str, values: Values) -> dict[int, float]:
    """Mean over the benchmarks of every seed that was asked all of them."""
    each = [values(method, name) for name in names]
    return {s: mean([v[s] for v in each]) for s in sorted(set(each[0]).intersection(*each[1:]))}

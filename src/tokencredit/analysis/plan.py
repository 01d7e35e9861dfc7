"""What a study's analysis expects to find: the grid as its `aggregate` spec states it (study/grid.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.study.errors import UserError
from tokencredit.study.grid import Cell, Layout

BASE = "base"  # method name of the untrained model; seed 0, step 0
MACRO = "macro"  # benchmark name of the mean over all benchmarks, where the study names no averages


@dataclass(frozen=True)
class Benchmark:
    name: str
    label: str
    samples: int
    every_checkpoint: bool


@dataclass(frozen=True)
class Average:
    """A mean over benchmarks that the study asks for: each of `of` counts once."""

    name: str
    label: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Expected cells of one study. methods: name -> label, in the grid's order, without 'base'."""

    study: str
    models: tuple[str, ...]
    methods: Mapping[str, str]
    seeds: tuple[int, ...]
    benchmarks: tuple[Benchmark, ...]
    steps: tuple[int, ...]
    baseline: str
    averages: tuple[Average, ...] = ()
    phases: Mapping[str, int] = field(default_factory=dict)  # method -> last step in which perturbed prompts act

    @property
    def means(self) -> dict[str, tuple[str, ...]]:
        """Name -> benchmarks of every mean over benchmarks: the study's averages, or the macro mean of all."""
        return {a.name: a.of for a in self.averages} or {MACRO: tuple(b.name for b in self.benchmarks)}

    def means_at(self, method: str, step: int) -> dict[str, tuple[str, ...]]:
        """Those of `means` whose benchmarks are all asked at this step: over fewer it would be another quantity."""
        asked = {b.name for b in self.benchmarks_at(method, step)}
        return {name: of for name, of in self.means.items() if asked >= set(of)}

    def least_samples(self, names: Iterable[str]) -> int:
        """The fewest samples per problem among these benchmarks: the k that a mean over them can answer for."""
        return min(b.samples for b in self.benchmarks if b.name in set(names))

    @property
    def last(self) -> int:
        """The final step."""
        return self.steps[-1]

    @property
    def challengers(self) -> list[str]:
        """Every method but the baseline."""
        return [m for m in self.methods if m != self.baseline]

    def label(self, method: str) -> str:
        return "Base model" if method == BASE else self.methods.get(method) or method

    def benchmark_label(self, name: str) -> str:
        if name == MACRO:
            return "Macro mean"
        labels = {b.name: b.label for b in self.benchmarks} | {a.name: a.label for a in self.averages}
        return labels.get(name) or name

    def runs(self, model: str | None = None) -> list[Cell]:
        """Training runs."""
        models = self.models if model is None else (model,)
        return [Cell(m, h, s) for m in models for h in self.methods for s in self.seeds]

    def checkpoints(self) -> Iterator[tuple[Cell, int]]:
        """(cell, step) of every evaluated checkpoint: each model's base at step 0, then the runs."""
        for model in self.models:
            yield Cell(model, BASE, 0), 0
        for cell in self.runs():
            for step in self.steps:
                yield cell, step

    def benchmarks_at(self, method: str, step: int) -> list[Benchmark]:
        """Benchmarks that are asked at this step: all at the end and for the base, some only there."""
        every = method == BASE or step == self.last
        return [b for b in self.benchmarks if every or b.every_checkpoint]


def plan(spec: Mapping[str, Any]) -> Plan:
    """Plan of an `aggregate` spec. UserError names the key that is missing or empty."""
    try:
        grid, rows = spec["grid"], spec["benchmarks"]
        made = Plan(
            study=spec["study"],
            models=tuple(grid["models"]),
            methods={m: spec.get("labels", {}).get(m) or m for m in grid["methods"]},
            seeds=tuple(int(s) for s in grid["seeds"]),
            benchmarks=tuple(
                Benchmark(b, rows[b].get("label") or b, int(rows[b]["samples"]), rows[b].get("checkpoints") != "final")
                for b in grid["benchmarks"]
            ),
            steps=tuple(sorted(int(s) for s in spec["steps"])),
            baseline=grid.get("baseline", "grpo"),
            averages=tuple(
                Average(name, a.get("label") or name, tuple(a["of"])) for name, a in spec.get("averages", {}).items()
            ),
            phases=dict(spec.get("phases", {})),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"aggregate spec: missing or malformed key {error}; let the study write its specs") from None
    for key in ("models", "methods", "seeds", "benchmarks", "steps"):
        if not getattr(made, key):
            raise UserError(f"aggregate spec: '{key}' is empty; there is nothing to aggregate")
    return made


def layout(root: Path | str) -> Layout:
    """Paths under results/{study}."""
    return Layout(str(root))

"""The grid of a study: its cells, where their files lie, and the spec file of every stage.

A spec holds exactly what its stage depends on and nothing else, so that an edit re-runs what it touches: rules
take specs as INPUT (small inputs are compared by checksum; params are compared as a set without names, and
would miss a swap). Specs are rewritten only when their content changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.study.analyses import Fidelity
from tokencredit.study.base import expand
from tokencredit.study.config import Study
from tokencredit.study.errors import UserError
from tokencredit.study.sources import FileProblems, FolderModel
from tokencredit.study.tables import write_json


@dataclass(frozen=True, order=True)
class Cell:
    """One training run, or (method 'base', seed 0) the untrained model."""

    model: str
    method: str
    seed: int

    @property
    def id(self) -> str:
        return f"{self.model}.{self.method}.seed{self.seed}"

    @property
    def folder(self) -> str:
        return f"{self.model}/{self.method}/seed{self.seed}"


@dataclass(frozen=True)
class Layout:
    """Paths of one study's results, as text relative to the working folder (Snakemake compares text)."""

    root: str

    def spec(self, name: str) -> str:
        return f"{self.root}/cells/{name}.json"

    @property
    def problems(self) -> str:
        return f"{self.root}/problems/train.parquet"

    @property
    def semifactuals(self) -> str:
        return f"{self.root}/problems/semifactuals.parquet"

    def benchmark(self, name: str) -> str:
        return f"{self.root}/problems/bench/{name}.parquet"

    def base(self, model: str) -> str:
        return f"{self.root}/models/{model}/base.json"

    def train(self, cell: Cell, file: str) -> str:
        return f"{self.root}/train/{cell.folder}/{file}"

    def checkpoint(self, cell: Cell, step: int) -> str:
        """The checkpoint's record; the base model's is its pointer."""
        return self.base(cell.model) if cell.method == "base" else self.train(cell, f"step{step}/checkpoint.json")

    def samples(self, cell: Cell, step: int, benchmark: str) -> str:
        return f"{self.root}/eval/{cell.folder}/step{step}/{benchmark}.parquet"

    def problem_set(self, name: str) -> str:
        """The training problems ("train"), or a benchmark's."""
        return self.problems if name == "train" else self.benchmark(name)

    def perturbed(self, name: str) -> str:
        """The semifactuals of a problem set."""
        return self.semifactuals if name == "train" else f"{self.root}/problems/semifactuals/{name}.parquet"

    def analysis(self, name: str, cell: Cell, step: int, file: str) -> str:
        return f"{self.root}/analyses/{name}/{cell.folder}/step{step}/{file}"


def layout(study: Study) -> Layout:
    return Layout(f"{study.results}/{study.study}")


def cells(study: Study) -> list[Cell]:
    """Every training run of the grid: models x methods x seeds, in the grid's order."""
    grid = study.grid
    return [Cell(m, h, s) for m in grid.models for h in grid.methods for s in grid.seeds]


def evaluations(study: Study) -> Iterator[tuple[Cell, int, str]]:
    """(cell, step, benchmark) of every evaluation: the base at step 0, then each cell's evaluated steps."""
    for model in study.grid.models:
        for benchmark in study.grid.benchmarks:
            yield Cell(model, "base", 0), 0, benchmark
    for cell in cells(study):
        for step in study.training.evaluated_steps:
            for benchmark in study.grid.benchmarks:
                if step == study.training.steps or study.benchmarks[benchmark].checkpoints == "all":
                    yield cell, step, benchmark


def analyses(study: Study) -> Iterator[tuple[str, Cell, int]]:
    """(analysis, cell, step): the base at step 0, a method at its last step with the grid's first seed."""
    for name in study.grid.analyses:
        for model in study.grid.models:
            for policy in study.analyses[name].policies:
                if policy == "base":
                    yield name, Cell(model, "base", 0), 0
                else:
                    yield name, Cell(model, policy, study.grid.seeds[0]), study.training.steps


def analysis_names(study: Study, kind: str) -> str:
    """Names of the study's analyses of one kind, as a pattern for a rule's wildcard; "-" (no name) if none."""
    return "|".join(name for name, a in study.analyses.items() if a.kind == kind) or "-"


def needs_semifactuals(study: Study, method: str) -> bool:
    return any(c.kind == "semifactual" for c in study.methods[method].credit)


def specs(study: Study) -> dict[str, dict[str, Any]]:
    """Spec name -> content, for every stage of the study. Content is plain JSON."""
    full = study.model_dump(mode="json")

    def credit_settings(method: str) -> dict[str, Any]:
        return {k: v for k, v in full["methods"][method].items() if k != "label"}

    out: dict[str, dict[str, Any]] = {
        "problems.train": {
            "stage": "problems",
            "name": "train",
            "seed": study.seed,
            "source": full["problems"],
        },
        "semifactuals": {"stage": "semifactuals", "seed": study.seed, "semifactuals": full["semifactuals"]},
        "runtime": full["runtime"],
    }
    for name in study.grid.benchmarks:
        benchmark = full["benchmarks"][name]
        out[f"problems.{name}"] = {
            "stage": "problems",
            "name": name,
            "seed": study.seed,
            "source": benchmark["source"],
        }
        out[f"evaluate.{name}"] = {
            "stage": "evaluate",
            "benchmark": name,
            "seed": study.seed,
            "samples": benchmark["samples"],
            "tolerance": benchmark["tolerance"],
            "evaluation": full["evaluation"],
        }
    for name in study.grid.models:
        model = full["models"][name]
        out[f"base.{name}"] = {
            "stage": "base",
            "model": name,
            "seed": study.seed,
            "source": model["source"],
            "prompt": model["prompt"],
            "dtype": model["dtype"],
            "engine": model["engine"],
        }
    for cell in cells(study):
        out[f"train.{cell.id}"] = {
            "stage": "train",
            "model": cell.model,
            "method": cell.method,
            "cell_seed": cell.seed,
            "seed": study.seed,
            "settings": full["models"][cell.model],
            "credit_method": credit_settings(cell.method),
            "training": full["training"],
        }
    for name in study.grid.analyses:
        for model in study.grid.models:
            out[f"analysis.{name}.{model}"] = {
                "stage": "analyse",
                "name": name,
                "model": model,
                "seed": study.seed,
                "analysis": {k: v for k, v in full["analyses"][name].items() if k not in ("label", "policies")},
                "settings": full["models"][model],
                "training": full["training"],
            }
            if isinstance(study.analyses[name], Fidelity):  # the one that asks what each method would credit
                out[f"analysis.{name}.{model}"]["methods"] = {m: credit_settings(m) for m in study.grid.methods}
    out["aggregate"] = {
        "stage": "aggregate",
        "study": study.study,
        "grid": full["grid"],
        "labels": {name: full["methods"][name]["label"] or name for name in study.grid.methods},
        "steps": list(study.training.evaluated_steps),
        "benchmarks": {
            name: {k: full["benchmarks"][name][k] for k in ("samples", "checkpoints", "label")}
            for name in study.grid.benchmarks
        },
    }
    out["report"] = {"stage": "report", "config": _selected(study, full)}
    return out


def _selected(study: Study, full: dict[str, Any]) -> dict[str, Any]:
    """The configuration without runtime, and without definitions that the grid leaves out."""
    config = {k: v for k, v in full.items() if k != "runtime"}
    for table in ("models", "methods", "benchmarks", "analyses"):
        config[table] = {name: full[table][name] for name in getattr(study.grid, table)}
    return config


def spec_hash(spec: dict[str, Any]) -> str:
    """16 hex digits naming a spec's content."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def write_specs(study: Study) -> Layout:
    """Write every spec file of the study, each only if its content changed."""
    place = layout(study)
    for name, content in specs(study).items():
        write_json(place.spec(name), content, only_if_changed=True)
    return place


def local_inputs(study: Study) -> dict[str, list[str]]:
    """Local files each problem set is read from ('train' and the benchmarks of the grid), expanded."""
    sources = {"train": study.problems} | {n: study.benchmarks[n].source for n in study.grid.benchmarks}
    return {n: [expand(s.path)] if isinstance(s, FileProblems) else [] for n, s in sources.items()}


def check_files(study: Study) -> None:
    """Every local file and folder that the grid needs exists; one UserError names all that do not."""
    lost = [
        f"{'problems' if name == 'train' else f'benchmarks.{name}.source'}.path: {path}: no such file"
        for name, paths in local_inputs(study).items()
        for path in paths
        if not Path(path).is_file()
    ]
    for name in study.grid.models:
        source = study.models[name].source
        if isinstance(source, FolderModel) and not (Path(expand(source.path)) / "config.json").is_file():
            lost.append(f"models.{name}.source.path: {expand(source.path)}: no config.json there")
    if lost:
        raise UserError("files of the study are missing:\n" + "\n".join(f"  - {line}" for line in lost))

"""The grid of a study: its cells, where their files lie, and the spec file of every stage.

A spec holds exactly what its stage depends on and nothing else, so that an edit re-runs what it touches: rules
take specs as INPUT (small inputs are compared by checksum; params are compared as a set without names, and
would miss a swap). Specs are rewritten only when their content changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.study.analyses import Completion, Fidelity
from tokencredit.study.base import expand
from tokencredit.study.config import Study
from tokencredit.study.dates import UNSEEN, group_of
from tokencredit.study.engines import Vllm
from tokencredit.study.errors import UserError
from tokencredit.study.registry import Missing, local_files, resolve
from tokencredit.study.sources import FolderModel, ProblemSource, ScratchModel, SyntheticProblems
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
    def candidates(self) -> str:
        """The training problems before those are dropped that are test problems too."""
        return f"{self.root}/problems/candidates.parquet"

    @property
    def overlap(self) -> str:
        return f"{self.root}/problems/overlap.parquet"

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


def gpus(study: Study, model: str, copies: int = 1) -> int:
    """GPUs that a job of this model takes, where it takes any: what one copy of it is spread over, for each copy."""
    engine = study.models[model].engine
    return copies * (engine.tensor_parallel if isinstance(engine, Vllm) else 1)


LOADED_MB = 16_000  # asked for by a job that loads a model from elsewhere; a profile knows its own (docs/slurm.md)


def memory_mb(study: Study, model: str, scratch: int) -> int:
    """Memory that a job of this model asks for, MB: `scratch` for one that is made here."""
    return scratch if isinstance(study.models[model].source, ScratchModel) else max(scratch, LOADED_MB)


def needs_semifactuals(study: Study, method: str) -> bool:
    return any(c.kind == "semifactual" for c in study.methods[method].credit)


def length_metrics(study: Study, cell: Cell) -> list[str]:
    """Metrics of the run whose response lengths a cell is held to; none for a method without a length term."""
    held = study.methods[cell.method].length
    return [] if held is None else [layout(study).train(Cell(cell.model, held.like, cell.seed), "metrics.parquet")]


def specs(study: Study) -> dict[str, dict[str, Any]]:
    """Spec name -> content, for every stage of the study. Content is plain JSON."""
    full = study.model_dump(mode="json")

    def credit_settings(method: str) -> dict[str, Any]:
        return {k: v for k, v in full["methods"][method].items() if k != "label"}

    def model_settings(model: str) -> dict[str, Any]:
        return {k: v for k, v in full["models"][model].items() if k not in ("released", "paper")}

    out: dict[str, dict[str, Any]] = {
        **_training_problems(study),
        "semifactuals": {"stage": "semifactuals", "seed": study.seed, "semifactuals": full["semifactuals"]},
        "runtime": full["runtime"],
    }
    evaluation = {k: v for k, v in full["evaluation"].items() if k != "engine" or v is not None}
    for name in study.grid.benchmarks:
        benchmark = full["benchmarks"][name]
        out[f"problems.{name}"] = {
            "stage": "problems",
            "name": name,
            "seed": study.seed,
            "source": _source(study, study.benchmarks[name].source),
        }
        out[f"evaluate.{name}"] = {
            "stage": "evaluate",
            "benchmark": name,
            "seed": study.seed,
            "samples": benchmark["samples"],
            "tolerance": benchmark["tolerance"],
            "evaluation": evaluation,
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
            "settings": model_settings(cell.model),
            "credit_method": credit_settings(cell.method),
            "training": full["training"],
        }
    for name in study.grid.analyses:
        look = study.analyses[name]
        for model in study.grid.models:
            analysis = {k: v for k, v in full["analyses"][name].items() if k not in ("label", "policies")}
            if isinstance(look, Completion) and look.controls is None:
                analysis["controls"] = _unseen(study, look.sets, model)
            out[f"analysis.{name}.{model}"] = {
                "stage": "analyse",
                "name": name,
                "model": model,
                "seed": study.seed,
                "analysis": analysis,
                "settings": model_settings(model),
                "training": full["training"],
            }
            if isinstance(look, Fidelity):  # the one that asks what each method would credit
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
    phases = {name: max(steps) for name in study.grid.methods if (steps := _probed(study, name))}
    if phases:
        out["aggregate"]["phases"] = phases
    if study.averages:
        out["aggregate"]["averages"] = full["averages"]
    out["report"] = {"stage": "report", "config": _selected(study, full)}
    return out


def _probed(study: Study, method: str) -> list[int]:
    """Until which optimisation step a method's semifactual credits act."""
    return [min(c.steps, study.training.steps) for c in study.methods[method].credit if c.kind == "semifactual"]


def _unseen(study: Study, sets: Sequence[str], model: str) -> list[str]:
    """Benchmarks among `sets` that the model cannot have read."""
    known = {n: study.benchmarks[n] for n in sets if n in study.grid.benchmarks}
    day = study.models[model].released
    return [n for n, b in known.items() if group_of(b.published, day, b.source.kind == "synthetic") in UNSEEN]


def _source(study: Study, source: ProblemSource) -> dict[str, Any]:
    """The source as the stage is to read it; a set of the registry that is not here stays a name."""
    with suppress(Missing):
        source = resolve(source, study.registry)
    return source.model_dump(mode="json")


def _training_problems(study: Study) -> dict[str, dict[str, Any]]:
    """Specs of the training problems, and of the overlap with the benchmarks.

    Where overlapping problems are dropped, all candidates are read first, and the training set is drawn from the rest.
    """
    source = _source(study, study.problems)
    read = {"stage": "problems", "name": "train", "seed": study.seed, "source": source}
    overlap = study.overlap.model_dump(mode="json") | {"against": list(dropped_against(study))}
    out: dict[str, dict[str, Any]] = {"overlap": {"stage": "overlap", "overlap": overlap}}
    if not study.overlap.drop:
        return {"problems.train": read, **out}
    size = None if isinstance(study.problems, SyntheticProblems) else source.get("size")
    whole = source if isinstance(study.problems, SyntheticProblems) else source | {"size": None}
    out["problems.candidates"] = read | {"name": "candidates", "source": whole}
    kept = {"stage": "problems", "name": "train", "seed": study.seed, "size": size}
    return {"problems.train": kept | {"threshold": study.overlap.threshold}, **out}


def dropped_against(study: Study) -> tuple[str, ...]:
    """Benchmarks whose problems are left out of training."""
    against = study.overlap.against
    return () if not study.overlap.drop else study.grid.benchmarks if against is None else against


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
    out: dict[str, list[str]] = {}
    for name, source in _asked(study).items():
        try:
            out[name] = list(local_files(resolve(source, study.registry)).values())
        except Missing:
            out[name] = []
    return out


def _asked(study: Study) -> dict[str, ProblemSource]:
    return {"train": study.problems} | {n: study.benchmarks[n].source for n in study.grid.benchmarks}


def check_files(study: Study) -> None:
    """Every local file and folder that the grid needs exists, and every set of the registry is to be had.

    One UserError names all that do not, what would help, and which benchmarks could still be run.
    """
    lost: list[str] = []
    gone: list[str] = []
    for name, source in _asked(study).items():
        before, key = len(lost), "problems" if name == "train" else f"benchmarks.{name}.source"
        try:
            files = local_files(resolve(source, study.registry))
        except Missing as error:
            lost.append(f"{key}: {error}")
            files = {}
        lost += [f"{key}.{at}: {path}: no such file" for at, path in files.items() if not Path(path).is_file()]
        gone += [name] if len(lost) > before else []
    for name in study.grid.models:
        model = study.models[name].source
        if isinstance(model, FolderModel) and not (Path(expand(model.path)) / "config.json").is_file():
            lost.append(f"models.{name}.source.path: {expand(model.path)}: no config.json there")
    lost += [f"semifactuals.origin.path: {p}: no such file" for p in study.semifactuals.files if not Path(p).is_file()]
    if lost:
        rest = [name for name in study.grid.benchmarks if name not in gone]
        still = f"\n  What is there would run with grid.benchmarks: [{', '.join(rest)}]"
        still = still if rest and "train" not in gone and set(gone) - {"train"} else ""
        raise UserError("files of the study are missing:\n" + "\n".join(f"  - {line}" for line in lost) + still)

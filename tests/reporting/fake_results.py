"""A made-up results tree with the real layout and schemas, for tests of aggregation and of the report.

Numbers are drawn from a seeded model of a study (a problem's difficulty, a method's gain over steps), so that
curves look like curves; they mean nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tokencredit.study.config import load_study
from tokencredit.study.grid import Cell, Layout, cells, evaluations, specs
from tokencredit.study.seeds import derive
from tokencredit.study.tables import write_json, write_table

METHODS = {
    "grpo": ("GRPO", 0.0, 1.0),
    "mcpo": ("MCPO", 0.45, 1.7),
    "scapo": ("SCAPO", 0.12, 1.15),
}  # name: label, gain in logits, length factor
BENCHMARKS = {"easy": ("Easy sums", 0.4, 24), "hard": ("Hard sums", -1.2, 20), "noop": ("NoOp sums", -0.8, 16)}
SHIFT = {"easy": 2.3, "hard": 1.4, "noop": 0.4}  # what training brings, in logits


def config(seeds: int = 3, rollouts: int = 25, samples: int = 8, models: tuple[str, ...] = ("tiny",)) -> dict[str, Any]:
    """A study that `load_study` accepts."""
    steps = 2 * rollouts
    return {
        "study": "fake",
        "title": "Made-up numbers for the tests",
        "problems": {"kind": "synthetic", "split": "train", "size": 64},
        "benchmarks": {
            name: {"source": {"kind": "synthetic", "split": name, "size": size}, "samples": samples, "label": label}
            for name, (label, _, size) in BENCHMARKS.items()
        },
        "models": {m: {"source": {"kind": "scratch"}} for m in models},
        "methods": {
            "grpo": {"label": "GRPO"},
            "mcpo": {"label": "MCPO", "credit": [{"kind": "margin"}]},
            "scapo": {"label": "SCAPO", "credit": [{"kind": "semifactual"}]},
        },
        "training": {
            "rollouts": rollouts,
            "prompts": 16,
            "updates": 2,
            "checkpoints": [int(steps * f) // 2 * 2 for f in (0.2, 0.4, 0.6, 0.8)],
        },
        "grid": {
            "models": list(models),
            "methods": list(METHODS),
            "seeds": list(range(seeds)),
            "benchmarks": list(BENCHMARKS),
        },
    }


def build(folder: Path, values: dict[str, Any] | None = None) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Write the tree under `folder`/fake. Returns (root, specs of the study)."""
    values = values or config()
    study = load_study(values)
    root = folder / study.study
    place = Layout(str(root))
    for cell in cells(study):
        _training(place, cell, study.training.steps)
    for cell, step, benchmark in evaluations(study):
        _evaluation(place, cell, step, study.training.steps, benchmark, study.benchmarks[benchmark].samples)
    for name, (_, _, size) in BENCHMARKS.items():
        _problems(place, name, size)
    _record(place.problems, "problems", seconds={"make": 0.4}, counts={"problems": 64})
    _record(place.semifactuals, "semifactuals", seconds={"perturb": 1.9})
    for model in study.grid.models:
        write_json(place.base(model), record("base", seconds={"pretrain": 41.0}))
    return root, specs(study)


def record(stage: str, **more: Any) -> dict[str, Any]:
    """What every stage writes beside its result."""
    return {
        "stage": stage,
        **more,
        "provenance": {
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "dirty": False,
            "code": "fedcba9876543210",
            "lock": "9f" * 32,
            "libraries": {"torch": "2.13.0", "numpy": "2.4.0", "math-verify": "0.9.0"},
            "machine": {"cpu": "Imaginary CPU <2 GHz>", "cores": 2, "python": "3.11.9", "system": "Linux x86_64"},
            "inputs": {"problems/train.parquet": "ab" * 32},
        },
    }


def _record(table: Path | str, stage: str, **more: Any) -> None:
    write_json(Path(table).with_suffix(".json"), record(stage, **more))


def problem_id(benchmark: str, i: int) -> str:
    return f"{derive('fake', benchmark, i):016x}"


def _problems(place: Layout, name: str, size: int) -> None:
    rows = [
        {
            "problem_id": problem_id(name, i), "source": "fake", "answer": str(7 + i), "answer_kind": "integer",
            "problem": f"Ada has {i} pears & finds 7 more, with i < {i + 1}. How many pears has she?",
            "choices": [], "tags": ["steps:1"],
        }
        for i in range(size)
    ]  # fmt: skip
    write_table("problems", rows, place.benchmark(name))
    _record(place.benchmark(name), "problems", seconds=0.2, digests={"inputs": {}, "output": "cd" * 32})


def _evaluation(place: Layout, cell: Cell, step: int, steps: int, benchmark: str, samples: int) -> None:
    _, ease, size = BENCHMARKS[benchmark]
    _, gain, longer = METHODS.get(cell.method, ("", 0.0, 1.0))
    rng = np.random.default_rng(derive("fake", cell.id, step, benchmark))
    run = 0.12 * np.random.default_rng(derive("fake run", cell.seed, benchmark)).normal()
    skill = (1 - math.exp(-3 * step / steps)) * (SHIFT[benchmark] + gain) + run + 0.06 * rng.normal()
    difficulty = np.random.default_rng(derive("fake problems", benchmark)).normal(scale=1.6, size=size)
    rows = []
    for i in range(size):
        chance = 1 / (1 + math.exp(-(ease + skill - difficulty[i])))
        for j in range(samples):
            right, odd = bool(rng.random() < chance), rng.random()
            tokens = int(rng.gamma(9, (3 + 2 * longer * step / steps)))
            value = 7 + i if right else 5 + i
            rows.append(
                {
                    "problem_id": problem_id(benchmark, i), "sample": j,
                    "seed": derive(cell.id, step, benchmark, i, j), "prompt_hash": "0123456789abcdef",
                    "text": f"Let me see: {i} + 7 < {i + 9} & <b>the sum</b> is {value}.\nAnswer: \\boxed{{{value}}}",
                    "token_count": tokens, "finish_reason": "length" if odd < 0.02 else "stop",
                    "extracted": str(value), "correct": right, "correct_library": right != (odd > 0.985),
                    "status": "no_box" if odd < 0.02 else "ok",
                }
            )  # fmt: skip
    path = Path(place.samples(cell, step, benchmark))
    write_table("samples", rows, path)
    _record(path, "evaluate", seconds={"load": 1.0, "sample": round(2 + 3 * rng.random(), 3), "grade": 0.5})


def _training(place: Layout, cell: Cell, steps: int) -> None:
    rng = np.random.default_rng(derive("fake training", cell.id))
    _, gain, longer = METHODS[cell.method]
    head = {"model": cell.model, "method": cell.method, "seed": cell.seed}
    metrics, timings = [], []
    for step in range(1, steps + 1):
        done = 1 - math.exp(-3 * step / steps)
        values = {
            "loss": 0.01 * rng.normal(),
            "reward_mean": 0.3 + (0.5 + 0.06 * gain) * done + 0.02 * rng.normal(),
            "entropy": 0.9 * math.exp(-2 * step / steps) + 0.02 * rng.normal(),
            "length_mean": 30 + 25 * longer * done + rng.normal(),
            "margin_mean": 0.7 + 0.2 * done + 0.005 * rng.normal(),
            "equal_groups": 0.2 + 0.3 * done + 0.02 * rng.normal(),
            "grad_norm": 0.5 + 0.1 * rng.random(),
        }
        if cell.method == "mcpo":
            values["margin/hesitant_share"] = 0.35 * math.exp(-1.5 * step / steps) + 0.005 * rng.normal()
            values["credit/weight_max"] = 1.8 - 0.2 * done + 0.02 * rng.normal()
            values["credit/effective_token_ratio"] = 0.92 + 0.05 * done
        if cell.method == "scapo" and step <= steps // 5:
            values["semifactual/drift_mean"] = 0.03 - 0.01 * done + 0.001 * rng.normal()
            values["semifactual/drift_p99"] = 0.4 - 0.1 * done + 0.01 * rng.normal()
            values["semifactual/corrected_share"] = 0.3 + 0.01 * rng.normal()
        metrics += [{**head, "step": step, "metric": k, "value": float(v)} for k, v in values.items()]
        phases = {"rollout": 0.4, "grade": 0.02, "score": 0.15, "update": 0.3, "peak_memory": 700.0}
        phases["tokens_per_second"] = 9000 + 100 * rng.normal()
        timings += [{**head, "step": step, "phase": k, "value": float(v)} for k, v in phases.items()]
    write_table("metrics", metrics, place.train(cell, "metrics.parquet"))
    write_table("timings", timings, place.train(cell, "timings.parquet"))
    write_json(place.train(cell, "train.json"), record("train", seconds={"rollout": steps * 0.4}))

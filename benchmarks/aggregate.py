"""How long `tokencredit aggregate` takes on a made-up study as large as the papers' are.

    python benchmarks/aggregate.py [--samples 19] [--folder FOLDER] [--profile]

Six methods, three seeds, eight benchmarks with 2,896 problems in all, 600 training steps. Numbers are drawn at random;
the tables have the real layout, the sizes of the real sets, and texts of a few hundred characters.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokencredit.analysis.aggregate import aggregate
from tokencredit.study.config import load_study
from tokencredit.study.grid import Cell, Layout, cells, evaluations, specs
from tokencredit.study.seeds import derive
from tokencredit.study.tables import schema, write_table

SIZES = {"aime24": 30, "aime25": 30, "aime26": 30, "amc": 40, "math": 500, "olympiad": 675, "minerva": 272, "gsm": 1319}
METHODS = ("grpo", "gspo", "sapo", "cf_grpo", "fipo", "scapo")
STEPS, METRICS = 600, 40


def study(samples: int) -> dict[str, Any]:
    source = {"kind": "synthetic", "split": "easy", "size": 8}
    return {
        "study": "large",
        "problems": {"kind": "synthetic", "split": "train", "size": 8},
        "benchmarks": {
            n: {"source": source, "samples": samples if size > 100 else 32, "checkpoints": "final"}
            for n, size in SIZES.items()
        },
        "models": {"model": {"source": {"kind": "scratch"}}},
        "methods": {m: {} for m in METHODS},
        "training": {"rollouts": STEPS // 2, "updates": 2},
        "grid": {"models": ["model"], "methods": list(METHODS), "seeds": [0, 1, 2], "benchmarks": list(SIZES)},
    }


def samples_table(cell: Cell, name: str, count: int) -> pa.Table:
    rng = np.random.default_rng(derive(cell.id, name))
    size = SIZES[name]
    problem = np.repeat(np.arange(size), count)
    chance = np.random.default_rng(len(name)).beta(1, 1, size=size)
    right = rng.random(size * count) < chance[problem]
    length = np.minimum(rng.gamma(3, 900, size * count).astype(np.int64) + 1, 8192)
    n = size * count
    columns = {
        "problem_id": [f"{name}{i:012x}" for i in problem], "sample": np.tile(np.arange(count), size),
        "seed": np.arange(n), "prompt_hash": ["0123456789abcdef"] * n, "text": [f"{i} so it is {i}. " * 20 for i in problem],
        "token_count": length, "finish_reason": np.where(length == 8192, "length", "stop"),
        "extracted": problem.astype(str), "correct": right, "correct_library": right,
        "status": np.where(rng.random(n) < 0.02, "no_box", "ok"),
    }  # fmt: skip
    return pa.table(columns, schema=schema("samples"))


def build(root: Path, samples: int) -> tuple[dict[str, Any], int]:
    planned = load_study(study(samples))
    place, rows = Layout(str(root)), 0
    for cell, step, name in evaluations(planned):
        table = samples_table(cell, name, planned.benchmarks[name].samples)
        write_table("samples", table, place.samples(cell, step, name))
        rows += table.num_rows
    for cell in cells(planned):
        head = {"model": cell.model, "method": cell.method, "seed": cell.seed}
        values = np.random.default_rng(cell.seed).random((STEPS, METRICS)).tolist()
        metrics = [
            {**head, "step": s + 1, "metric": f"m{i}", "value": v}
            for s, row in enumerate(values)
            for i, v in enumerate(row)
        ]
        write_table("metrics", metrics, place.train(cell, "metrics.parquet"))
    return specs(planned)["aggregate"], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=19, help="per problem of the four large sets")
    parser.add_argument("--folder", type=Path, help="where to build the study (default: a temporary folder)")
    parser.add_argument("--profile", action="store_true", help="also say where the time goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.folder or Path(temporary)
        spec, rows = build(root, args.samples)
        profiler = cProfile.Profile()
        begun, cpu = time.perf_counter(), time.process_time()
        if args.profile:
            profiler.enable()
        aggregate(spec, root, root / "analysis")
        profiler.disable()
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{rows:,} samples: {wall:.1f} s, {cpu:.1f} CPU s, peak {memory:,.0f} MiB (building included)")
        if args.profile:
            pstats.Stats(profiler).sort_stats("cumulative").print_stats(30)


if __name__ == "__main__":
    main()

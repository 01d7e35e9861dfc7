"""Evaluate one checkpoint on one benchmark: n samples per problem, one row per sample, resumable by shard.

A sample's seed is a function of (study seed, checkpoint, benchmark, problem, sample) alone. The order of work is
fixed by problem and sample, so that shards hold the same rows whenever and however often the job is restarted.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokencredit.grading import Grader, Item
from tokencredit.model.base import base_prompt, eos_ids
from tokencredit.model.checkpoint import Checkpoint, open_checkpoint
from tokencredit.model.prompts import Prompter, load_tokenizer, prompt_hash
from tokencredit.sampling import Engine, Params, Request
from tokencredit.sampling.opened import open_engine
from tokencredit.study.base import parse
from tokencredit.study.config import Evaluation, Runtime
from tokencredit.study.errors import UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.parts import Progress, chunked, table_parts
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_json, read_table, write_json, write_table


@dataclass(frozen=True)
class Task:
    """One sample to draw."""

    problem: Mapping[str, Any]
    sample: int
    seed: int
    prompt: tuple[int, ...]


def evaluate(
    spec: dict[str, Any],
    checkpoint: Path,
    problems: Path,
    output: Path,
    record: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
) -> None:
    """Sample and grade; write the `samples` table and its record. Finished shards under `state` are kept."""
    settings = parse(Evaluation, spec["evaluation"], "spec: evaluation")
    opened = open_checkpoint(checkpoint)
    seconds: dict[str, float] = {}
    rows = read_table("problems", problems).to_pylist()
    if not rows:
        raise UserError(f"{problems}: no problems to evaluate on")
    begun = time.perf_counter()
    prompter = Prompter(load_tokenizer(opened.folder), base_prompt(opened.base))
    tasks = list_tasks(spec, opened, rows, prompter)
    model = read_json(opened.base)["spec"]
    kind = settings.engine or model["engine"]
    engine = open_engine(opened, kind, runtime.device, model["dtype"], runtime.copies)
    seconds["load"] = time.perf_counter() - begun
    identity = spec_hash({"spec": spec, "checkpoint": opened.digest, "problems": file_digest(problems)})
    params = Params(
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        eos=eos_ids(opened.folder),
    )
    with Grader(workers=runtime.grader_workers, library=settings.library_verdict) as grader:
        worker = Worker(engine, params, prompter, grader, spec["tolerance"], seconds)
        shards = table_parts("samples", state / identity)
        label = f"evaluate {title(opened)} on {spec['benchmark']}"
        table = pa.concat_tables(
            shards.run(chunked(tasks, settings.shard_samples), worker.work, label, "sample", "shard")
        )
    write_table("samples", table, output)
    summary = summarise(table)
    write_json(
        record,
        {
            "stage": "evaluate",
            "spec": spec,
            "spec_hash": spec_hash(spec),
            **opened.identity,
            "benchmark": spec["benchmark"],
            "samples": spec["samples"],
            "problems": len(rows),
            **summary,
            "engine": type(engine).__name__,
            **served(engine),
            "checkpoint": opened.digest,
            "seconds": seconds,
            "counts": {"samples": table.num_rows, "resumed_shards": shards.resumed},
            "provenance": collect([checkpoint, problems]),
        },
    )
    events.metrics({k: v for k, v in summary.items() if isinstance(v, float)}, opened.identity["step"])
    shutil.rmtree(state, ignore_errors=True)


def served(engine: Engine) -> dict[str, Any]:
    """What the record says of a server: the name asked for, and whether it said which checkpoint that is."""
    told = {name: getattr(engine, name, None) for name in ("name", "verified")}
    return {} if told["verified"] is None else {"served": told}


def title(checkpoint: Checkpoint) -> str:
    i = checkpoint.identity
    return f"{i['model']}.{i['method']}.seed{i['seed']} step {i['step']}"


def list_tasks(
    spec: Mapping[str, Any], checkpoint: Checkpoint, rows: Sequence[Mapping[str, Any]], prompter: Prompter
) -> list[Task]:
    """Every sample of the benchmark, problem after problem, in the problems' order."""
    i = checkpoint.identity
    where = (spec["seed"], "evaluate", i["model"], i["method"], i["seed"], i["step"], spec["benchmark"])
    tasks = []
    for row in rows:
        prompt = prompter.ids(row["problem"], row["choices"])
        for sample in range(spec["samples"]):
            tasks.append(Task(row, sample, derive(*where, row["problem_id"], sample), prompt))
    return tasks


class Worker:
    """Samples and grades tasks."""

    def __init__(
        self,
        engine: Engine,
        params: Params,
        prompter: Prompter,
        grader: Grader,
        tolerance: float | None,
        seconds: dict[str, float],
    ):
        self.engine, self.params, self.prompter = engine, params, prompter
        self.grader, self.tolerance, self.seconds = grader, tolerance, seconds

    def work(self, tasks: Sequence[Task], progress: Progress) -> list[dict[str, Any]]:
        begun = time.perf_counter()
        completions = self.engine.generate([Request(t.prompt, t.seed) for t in tasks], self.params)
        sampled = time.perf_counter()
        texts = [self.prompter.decode(c.tokens) for c in completions]
        items = [
            Item(
                t.problem["answer"],
                text,
                t.problem["answer_kind"],
                own_tolerance(t.problem["tags"], self.tolerance),
                c.finish == "length",
            )
            for t, text, c in zip(tasks, texts, completions, strict=True)
        ]
        verdicts = self.grader.grade(items)
        self.seconds["sample"] = self.seconds.get("sample", 0.0) + sampled - begun
        self.seconds["grade"] = self.seconds.get("grade", 0.0) + time.perf_counter() - sampled
        return [
            {
                "problem_id": t.problem["problem_id"],
                "sample": t.sample,
                "seed": t.seed,
                "prompt_hash": prompt_hash(t.prompt),
                "text": text,
                "token_count": len(c.tokens),
                "finish_reason": c.finish,
                "extracted": v.extracted,
                "correct": v.correct,
                "correct_library": v.correct_library,
                "status": v.status,
            }
            for t, text, c, v in zip(tasks, texts, completions, verdicts, strict=True)
        ]


def own_tolerance(tags: Sequence[str], default: float | None) -> float | None:
    """The row's own relative tolerance (tag `tolerance:`), else the benchmark's."""
    return next((float(t.removeprefix("tolerance:")) for t in tags if t.startswith("tolerance:")), default)


def summarise(table: pa.Table) -> dict[str, Any]:
    """What the record and the tracker show of a samples table."""
    columns = {name: table.column(name).to_pylist() for name in ("correct", "correct_library", "status", "token_count")}
    n = table.num_rows
    library = [v for v in columns["correct_library"] if v is not None]
    differs = sum(a != b for a, b in zip(columns["correct"], columns["correct_library"], strict=True) if b is not None)
    return {
        "accuracy": sum(columns["correct"]) / n,
        "accuracy_library": sum(library) / len(library) if library else None,
        "library_differs": differs,
        "grader": dict(Counter(columns["status"])),
        "tokens_mean": sum(columns["token_count"]) / n,
        "truncated": table.column("finish_reason").to_pylist().count("length") / n,
    }

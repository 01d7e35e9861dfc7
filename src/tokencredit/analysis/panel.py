"""Diagnostic panel of a frozen policy (SCAPO, arXiv 2609.40360, section 3): drift of every token of fresh responses.

One response each to `count` problems at the training temperature (1.0 in the paper) and top-p 1.0, scored by the
trainer's score pass under the clean prompt and teacher-forced under each perturbed one:
d_t = mean_k 2 tanh(|log p0 - log pk| / 2). Drift by token category, and the margins of the same tokens, by which the
thresholds of MCPO's reconstruction can be judged for this model.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from tokencredit.analysis.fidelity_inputs import open_policy
from tokencredit.analysis.panel_results import summarise
from tokencredit.credit.semifactual import drift
from tokencredit.evaluation.run import title
from tokencredit.grading import Grader, Item
from tokencredit.model.base import base_prompt, eos_ids
from tokencredit.model.checkpoint import Checkpoint, open_checkpoint
from tokencredit.model.policy import Policy
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.problems.categories import Categoriser
from tokencredit.sampling import Engine, Params, Request
from tokencredit.sampling.opened import open_engine
from tokencredit.study.analyses import Panel
from tokencredit.study.base import expand, parse
from tokencredit.study.config import Model, Runtime, Training
from tokencredit.study.errors import UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.parts import Progress, chunked, table_parts
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_table, write_json, write_table
from tokencredit.training.lease import Lease
from tokencredit.training.probes import EngineGap, Forced, engine_gap, microbatches, perturbed_logprobs, probing
from tokencredit.training.rollout import Rollout
from tokencredit.training.update import score

GAP_PROBLEMS = 16  # whose readings by an engine are checked against the trainer's

Row = dict[str, Any]
Problem = Mapping[str, Any]


def analyse(
    spec: dict[str, Any],
    checkpoint: Path,
    problems: Path,
    semifactuals: Path,
    out: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
) -> None:
    """Write panel_tokens.parquet and record.json. Finished parts under `state` stay until then."""
    settings = parse(Panel, spec["analysis"], "spec: analysis")
    model = parse(Model, spec["settings"], "spec: settings")
    training = parse(Training, spec["training"], "spec: training")
    opened = open_checkpoint(checkpoint)
    prompter = Prompter(load_tokenizer(opened.folder), base_prompt(opened.base))
    lexicon = [Path(expand(settings.connectives))] if settings.connectives else []
    categoriser = Categoriser(*lexicon)
    chosen = choose(read_table("problems", problems).to_pylist(), settings.count, spec["seed"])
    if not chosen:
        raise UserError(f"{problems}: no problems to look at")
    prompts = perturbed_prompts(semifactuals, settings.kinds, prompter, chosen)
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    engine = open_engine(opened, model.engine, runtime.device, model.dtype)
    policy = open_policy(opened, model, training, runtime.device)
    forced = probing(engine, model.engine)
    seconds["load"] = time.perf_counter() - begun
    inputs = {p.name: file_digest(p) for p in (problems, semifactuals, *lexicon)}
    identity = spec_hash({"spec": spec, "checkpoint": opened.digest, "inputs": inputs})
    with Lease(state), Grader(workers=runtime.grader_workers, library=False) as grader:
        observer = Observer(
            spec, opened, settings, training, engine, forced, policy, prompter, categoriser, grader, prompts, seconds
        )  # fmt: skip
        parts, label = table_parts("panel_tokens", state / identity, same_problems), f"panel of {title(opened)}"
        table = pa.concat_tables(parts.run(chunked(chosen, settings.shard_problems), observer.work, label, "response"))
    told_apart: dict[str, Any] = {}
    if forced is not None:
        told_apart = vars(gap_of(table, chosen[:GAP_PROBLEMS], settings.kinds, prompts, policy, training))
    results = summarise(table, settings.kinds, derive(spec["seed"], "panel", "bootstrap"))
    write_table("panel_tokens", table, out / "panel_tokens.parquet")
    write_json(
        out / "record.json",
        {
            "stage": "analyse",
            "spec": spec,
            "spec_hash": spec_hash(spec),
            **opened.identity,
            "engine": type(engine).__name__,
            "checkpoint": opened.digest,
            "results": results | ({"engine_gap": told_apart} if told_apart else {}),
            "seconds": seconds,
            "counts": {"problems": len(chosen), "tokens": table.num_rows, "resumed_parts": parts.resumed},
            "connectives": len(categoriser.connectives),
            "provenance": collect([checkpoint, problems, semifactuals, *lexicon]),
        },
    )
    told = {"drift_mean": results["drift"]["mean"], "margin_mean": results["margin"]["mean"]}
    events.metrics({k: v for k, v in told.items() if v is not None}, opened.identity["step"])
    shutil.rmtree(state, ignore_errors=True)


def gap_of(
    table: pa.Table,
    problems: Sequence[Problem],
    kinds: Sequence[str],
    prompts: Mapping[tuple[str, str], tuple[int, ...]],
    policy: Policy,
    training: Training,
) -> EngineGap:
    """How far the engine's readings in the table are from the trainer's, over one micro-batch of these problems."""
    of: dict[str, list[Row]] = {p["problem_id"]: [] for p in problems}
    for row in table.select(["problem_id", "token_id", "perturbed"]).to_pylist():
        if row["problem_id"] in of:
            of[row["problem_id"]].append(row)
    responses = [tuple(r["token_id"] for r in rows) for rows in of.values()]
    perturbed = torch.full((len(kinds), len(responses), max(map(len, responses))), torch.nan, dtype=policy.precision)
    for i, rows in enumerate(of.values()):
        for t, row in enumerate(rows):
            perturbed[:, i, t] = torch.tensor([math.nan if p is None else p for p in row["perturbed"]])
    blank: list[Any] = [None] * len(responses)
    rollout = Rollout(
        problems=list(problems), prompts=blank, responses=responses, finish=blank, texts=blank,
        groups=torch.arange(len(responses)), correct=torch.zeros(len(responses)), sampler_logprobs=blank, row_seeds=[],
    )  # fmt: skip
    return engine_gap(policy, rollout, kinds, prompts, training.microbatch_tokens, perturbed)


def same_problems(table: pa.Table, chunk: Sequence[Problem]) -> bool:
    """Whether a part holds tokens of just these problems."""
    return set(table.column("problem_id").to_pylist()) == {p["problem_id"] for p in chunk}


def choose(rows: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """`count` problems drawn by the study's seed, in the table's order: stable when the file is re-ordered."""
    drawn = sorted(rows, key=lambda r: (derive(seed, "analysis", "problems", r["problem_id"]), r["problem_id"]))
    wanted = {r["problem_id"] for r in drawn[:count]}
    return [r for r in rows if r["problem_id"] in wanted]


def perturbed_prompts(
    semifactuals: Path, kinds: Sequence[str], prompter: Prompter, problems: Sequence[Problem]
) -> dict[tuple[str, str], tuple[int, ...]]:
    """(problem id, kind) -> prompt ids of these problems' valid perturbations; a kind that nobody has is an error."""
    rows = [r for r in read_table("semifactuals", semifactuals).to_pylist() if r["valid"] and r["kind"] in kinds]
    lacking = [k for k in kinds if k not in {r["kind"] for r in rows}]
    if lacking:
        raise UserError(f"{semifactuals}: no valid perturbation of kind {', '.join(lacking)} (analyses.*.kinds)")
    choices = {p["problem_id"]: p["choices"] for p in problems}
    return {
        (name, r["kind"]): prompter.ids(r["text"], choices[name]) for r in rows if (name := r["problem_id"]) in choices
    }


class Observer:
    """Samples one response to each problem and scores it under the clean and the perturbed prompts."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        opened: Checkpoint,
        settings: Panel,
        training: Training,
        engine: Engine,
        forced: Forced | None,
        policy: Policy,
        prompter: Prompter,
        categoriser: Categoriser,
        grader: Grader,
        prompts: Mapping[tuple[str, str], tuple[int, ...]],
        seconds: dict[str, float],
    ):
        self.settings, self.training, self.engine, self.policy = settings, training, engine, policy
        self.forced, self.prompter, self.categoriser, self.grader, self.prompts = (
            forced,
            prompter,
            categoriser,
            grader,
            prompts,
        )
        i = opened.identity
        self.where = (spec["seed"], "panel", i["model"], i["method"], i["seed"], i["step"], spec["name"])
        self.params = Params(settings.max_tokens, training.temperature, eos=eos_ids(opened.folder))
        self.seconds = seconds

    def work(self, problems: Sequence[Problem], progress: Progress) -> list[Row]:
        begun = time.perf_counter()
        rows = self._rows(problems)
        self.seconds["work"] = self.seconds.get("work", 0.0) + time.perf_counter() - begun
        return rows

    def _rows(self, problems: Sequence[Problem]) -> list[Row]:
        rollout = self._sample(problems)
        mask, budget = rollout.mask, self.training.microbatch_tokens
        lengths = [len(p) + len(r) for p, r in zip(rollout.prompts, rollout.responses, strict=True)]
        logprob, entropy, margin = score(self.policy, rollout, microbatches(lengths, range(len(lengths)), budget), mask)
        kinds = self.settings.kinds
        perturbed = perturbed_logprobs(self.policy, rollout, kinds, self.prompts, budget, self.forced)
        moved = drift(logprob, perturbed).nanmean(0)
        rows = []
        for i, tokens in enumerate(rollout.responses):
            for t, (token, piece) in enumerate(zip(tokens, self.prompter.pieces(tokens), strict=True)):
                rows.append(
                    {
                        "problem_id": problems[i]["problem_id"],
                        "position": t,
                        "token_id": token,
                        "piece": piece,
                        "category": self.categoriser.of(piece),
                        "correct": bool(rollout.correct[i]),
                        "logprob": logprob[i, t].item(),
                        "perturbed": [None if p.isnan() else p.item() for p in perturbed[:, i, t]],
                        "drift": None if moved[i, t].isnan() else moved[i, t].item(),
                        "margin": margin[i, t].item(),
                        "entropy": entropy[i, t].item(),
                    }
                )
        return rows

    def _sample(self, problems: Sequence[Problem]) -> Rollout:
        """One graded response each, every problem a group of its own."""
        asked = [self.prompter.ids(p["problem"], p["choices"]) for p in problems]
        seeds = [derive(*self.where, p["problem_id"]) for p in problems]
        drawn = self.engine.generate([Request(a, s) for a, s in zip(asked, seeds, strict=True)], self.params)
        texts = [self.prompter.decode(c.tokens) for c in drawn]
        items = [
            Item(p["answer"], text, p["answer_kind"], truncated=c.finish == "length")
            for p, text, c in zip(problems, texts, drawn, strict=True)
        ]
        correct = [float(v.correct) for v in self.grader.grade(items)]
        return Rollout(
            problems=list(problems),
            prompts=asked,
            responses=[tuple(c.tokens) for c in drawn],
            finish=[c.finish for c in drawn],
            texts=texts,
            groups=torch.arange(len(problems)),
            correct=torch.tensor(correct, dtype=torch.float64),
            sampler_logprobs=[tuple(c.logprobs) for c in drawn],
            row_seeds=seeds,
        )

"""Credit fidelity: does a method's token credit point at the tokens that decided the answer? One checkpoint.

Sampled: `count` problems with G responses each, as in one rollout. Of the responses in groups with mixed rewards,
`responses` are measured, chosen by hash: effect_t by Monte Carlo (training/values.py), with continuations of its own,
apart from those an oracle credit draws. Every method then credits the same rollout as at its first update (ratio 1,
optimisation step 1), and is scored against the effects (fidelity_scores.py).
Planted features (embedded testbed only): tags and scenario phrases that the corpus made predict care. `moved` is
|log p(token | prompt) - log p(token | the same problem without them)|.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from tokencredit.analysis.fidelity_inputs import alone, categories, open_policy, without_planted
from tokencredit.analysis.fidelity_scores import Credited, Score, score_all
from tokencredit.analysis.fidelity_tables import Response, credits_table, scores_table, tokens_table, truths, unpack
from tokencredit.credit import group_advantage, selected_tokens, token_advantages
from tokencredit.credit.semifactual import drift
from tokencredit.evaluation.run import title
from tokencredit.grading import Grader
from tokencredit.model.base import base_prompt, eos_ids
from tokencredit.model.checkpoint import open_checkpoint
from tokencredit.model.policy import Policy
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.sampling import Completion, Params, Request
from tokencredit.sampling.opened import open_engine
from tokencredit.study.analyses import Fidelity
from tokencredit.study.base import parse
from tokencredit.study.config import SEMIFACTUAL_KINDS, Model, Runtime, Training
from tokencredit.study.errors import GoOn, UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.methods import Method
from tokencredit.study.parts import Progress, row_parts
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_table, write_json, write_table
from tokencredit.training.lease import Lease
from tokencredit.training.probes import Sources, gather, microbatches, monte_carlo, perturbed_logprobs
from tokencredit.training.rollout import Rollout, grade, mixed, shape
from tokencredit.training.stop import Interrupted, StopWatch, timed
from tokencredit.training.update import score
from tokencredit.training.values import Values, prefix_values, text_grade

log = logging.getLogger(__name__)
Scores = tuple[Tensor, Tensor, Tensor]  # log-probability, entropy, margin [N, T]
BARE = "without planted features"
SIGNALS: dict[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]] = {  # what a credit could look at: more is more
    "hesitation": lambda seen: 1 - seen["margin"],
    "entropy": lambda seen: seen["entropy"],
    "surprisal": lambda seen: -seen["logprob"],
    "drift": lambda seen: np.nan_to_num(seen["drift"]),
}


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
    """Measure and score; tables and record.json under `out`. Finished parts under `state` are kept until the end."""
    with Lease(state), StopWatch(runtime.wall_minutes) as stop:
        run = Run(spec, checkpoint, problems, semifactuals, state, runtime, stop)
        try:
            with Grader(workers=runtime.grader_workers, library=False) as grader:
                run.work(grader, out, events)
        except Interrupted:
            raise GoOn from None
        for folder in (f for f in state.iterdir() if f.is_dir()):  # parts of an edited spec too; the lease stays
            shutil.rmtree(folder)


class Run:
    """One checkpoint's analysis: what it reads, and its steps in order."""

    def __init__(
        self, spec: dict[str, Any], checkpoint: Path, problems: Path, semifactuals: Path, state: Path,
        runtime: Runtime, stop: StopWatch,
    ):  # fmt: skip
        self.spec, self.stop, self.inputs = spec, stop, [checkpoint, problems, semifactuals]
        self.settings = parse(Fidelity, spec["analysis"], "spec: analysis")
        training = parse(Training, spec["training"], "spec: training")
        self.training = training.model_copy(update={"max_tokens": self.settings.max_tokens})
        self.methods = {name: parse(Method, m, f"spec: methods.{name}") for name, m in spec["methods"].items()}
        self.opened = open_checkpoint(checkpoint)
        identity = {"spec": spec, "checkpoint": self.opened.digest, "inputs": [*map(file_digest, self.inputs[1:])]}
        self.state = state / spec_hash(identity)
        self.clock: dict[str, float] = {}
        model = parse(Model, spec["settings"], "spec: settings")
        with timed(self.clock, "load"):
            self.prompter = Prompter(load_tokenizer(self.opened.folder), base_prompt(self.opened.base))
            self.engine = open_engine(self.opened, model.engine, runtime.device, model.dtype)
            self.policy = open_policy(self.opened, model, self.training, runtime.device)
        self.eos = eos_ids(self.opened.folder)
        self.problems: list[Mapping[str, Any]] = self._problems(problems)
        asked = {p["problem_id"] for p in self.problems}
        self.perturbed = {
            (row["problem_id"], row["kind"]): self.prompter.ids(row["text"])
            for row in read_table("semifactuals", semifactuals).to_pylist()
            if row["valid"] and row["problem_id"] in asked
        }

    def _problems(self, path: Path) -> list[Mapping[str, Any]]:
        """`count` problems, the same for every policy: those with the lowest hashes."""
        rows: list[Mapping[str, Any]] = read_table("problems", path).to_pylist()
        if not rows:
            raise UserError(f"{path}: no problems to analyse")
        ranked = sorted(rows, key=lambda r: derive(self.spec["seed"], "fidelity", "problem", r["problem_id"]))
        return ranked[: self.settings.count]

    def _seed(self, purpose: str, problem: Mapping[str, Any], sample: int) -> int:
        i = self.opened.identity
        where = (self.spec["seed"], "fidelity", i["model"], i["method"], i["seed"], i["step"])
        return derive(*where, purpose, problem["problem_id"], sample)

    def work(self, grader: Grader, out: Path, events: Any) -> None:
        rollout = self.rollout(grader)
        rows = self.choose(rollout)
        values, forks = self.values(rollout, rows, grader)
        with self.stop.disposable():
            found = self.look(rollout, rows, values)
            credits = self.credit(rollout, rows, grader)
            with timed(self.clock, "statistics"):
                scores = self.scores(found, credits)
        write_table("fidelity_tokens", tokens_table(found), out / "fidelity_tokens.parquet")
        write_table("fidelity_credits", credits_table(found, credits), out / "fidelity_credits.parquet")
        write_table("fidelity_scores", scores_table(scores), out / "fidelity_scores.parquet")
        results = self.results(rollout, found, scores)
        write_json(out / "record.json", self.record(results, rollout, found, forks))
        events.metrics({k: v for k, v in results.items() if isinstance(v, float)}, self.opened.identity["step"])

    # --- what is sampled and measured ---

    def rollout(self, grader: Grader) -> Rollout:
        """G responses to each problem at the training temperature; read back where the job was restarted."""
        group = self.training.group
        prompts = [ids for p in self.problems for ids in [self.prompter.ids(p["problem"], p["choices"])] * group]
        seeds = [self._seed("rollout", p, k) for p in self.problems for k in range(group)]
        requests = [Request(p, s) for p, s in zip(prompts, seeds, strict=True)]
        params = Params(self.settings.max_tokens, self.training.temperature, eos=self.eos)

        def sample(requests: Sequence[Request], progress: Progress) -> dict[str, Any]:
            with self.stop.disposable(), timed(self.clock, "sample"):
                return {"rows": [dataclasses.asdict(c) for c in self.engine.generate(requests, params)]}

        parts = row_parts(self.state).run([requests], sample, f"{self._title()} responses", "response", "rollout")
        completions = [
            Completion(tuple(c["tokens"]), c["finish"], tuple(c["logprobs"])) for part in parts for c in part["rows"]
        ]
        return grade(self.problems, prompts, completions, seeds, self.prompter, grader, group)

    def choose(self, rollout: Rollout) -> list[int]:
        """Rows to measure, in order: of the responses in groups with mixed rewards, those with the lowest hashes."""
        group = self.training.group
        groups = mixed(rollout.correct, group).nonzero().flatten().tolist()
        among = [row for g in groups for row in range(g * group, (g + 1) * group)]

        def rank(row: int) -> int:
            return self._seed("measure", rollout.problems[row // group], row % group)

        return sorted(sorted(among, key=rank)[: self.settings.responses])

    def values(self, rollout: Rollout, rows: Sequence[int], grader: Grader) -> tuple[list[dict[str, list[float]]], int]:
        """(values of each measured response, distinct forks sampled), in shards of whole problems, each a file."""

        def work(rows: Sequence[int], progress: Progress) -> dict[str, Any]:
            if self.stop.wanted:
                raise Interrupted
            begun = time.monotonic()
            with self.stop.disposable(), timed(self.clock, "values"):
                values = self._measure(rollout, rows, grader)
            self.stop.longest = max(self.stop.longest, time.monotonic() - begun)
            return {"rows": unpack(values), "forks": values.sampled}

        chunks = shards(rows, self.training.group, self.settings.shard_responses)
        parts = row_parts(self.state).run(chunks, work, f"{self._title()} values", "response", "values")
        return [row for part in parts for row in part["rows"]], sum(part["forks"] for part in parts)

    def _measure(self, rollout: Rollout, rows: Sequence[int], grader: Grader) -> Values:
        group = self.training.group
        problems = [rollout.problems[row // group] for row in rows]
        return prefix_values(
            self.engine,
            [rollout.prompts[row] for row in rows],
            [rollout.responses[row] for row in rows],
            [rollout.finish[row] for row in rows],
            [rollout.correct[row].item() for row in rows],
            problems,
            text_grade(self.prompter, grader),
            samples=self.settings.samples,
            eos=self.eos,
            max_tokens=self.settings.max_tokens,
            seeds=[self._seed("truth", p, row % group) for p, row in zip(problems, rows, strict=True)],
            logprobs=[rollout.sampler_logprobs[row] for row in rows],
            tolerance=self.settings.tolerance,
            temperature=self.training.temperature,
        )

    def _title(self) -> str:
        return f"{self.spec['name']}: {title(self.opened)}"

    # --- what is seen and credited ---

    def look(self, rollout: Rollout, rows: Sequence[int], values: Sequence[Mapping[str, Any]]) -> list[Response]:
        """Everything about each measured response, token by token."""
        if not rows:
            return []
        part = alone(rollout, rows, self.training.group)
        budget = self.training.microbatch_tokens
        logprob, entropy, margin = self._score(part)
        kinds = [k for k in SEMIFACTUAL_KINDS if any(kind == k for _, kind in self.perturbed)]
        bare = {
            (p["problem_id"], BARE): self.prompter.ids(text, p["choices"])
            for p in self.problems
            if (text := without_planted(p)) is not None
        }
        with timed(self.clock, "probe"):
            changed = perturbed_logprobs(self.policy, part, kinds, self.perturbed, budget)
            without = perturbed_logprobs(self.policy, part, (BARE,), bare, budget)
        drifts = drift(logprob.double(), changed.double()).nanmean(0)
        moved = (logprob - without[0]).abs().double()
        tables = {"logprob": logprob, "margin": margin, "entropy": entropy, "drift": drifts, "moved": moved}
        found = []
        for i, (row, response) in enumerate(zip(rows, part.responses, strict=True)):
            size, pieces = len(response), self.prompter.pieces(response)
            seen = {name: table[i, :size].double().numpy() for name, table in tables.items()}
            found.append(
                Response(
                    problem=part.problems[i]["problem_id"],
                    sample=row % self.training.group,
                    correct=bool(part.correct[i]),
                    pieces=pieces,
                    categories=categories(part.problems[i], pieces),
                    seen=seen,
                    values={name: np.array(column) for name, column in values[i].items()},
                )
            )
        return found

    def _score(self, rollout: Rollout) -> Scores:
        lengths = [len(p) + len(r) for p, r in zip(rollout.prompts, rollout.responses, strict=True)]
        batches = microbatches(lengths, range(len(lengths)), self.training.microbatch_tokens)
        with timed(self.clock, "score pass"):
            return score(self.policy, rollout, batches, rollout.mask)

    def credit(self, rollout: Rollout, rows: Sequence[int], grader: Grader) -> dict[str, list[Credited]]:
        """Method -> what it gives each measured response."""
        if not rows:
            return {}
        measured = torch.zeros(len(rollout.responses), dtype=torch.bool)
        measured[list(rows)] = True
        effects = monte_carlo(self.engine, self.prompter, grader, self.eos, self.training)
        sources = Sources(
            self.perturbed, self.prompter.pieces, lambda r, old, wanted, s: effects(r, old, wanted & measured, s)
        )
        scores, out = self._score(rollout), {}
        bar = tqdm(self.methods.items(), desc=f"{self._title()} credits", unit="method", mininterval=2)
        for name, method in bar:
            with timed(self.clock, "credit"):
                advantage, tokens = credited(self.policy, rollout, method, self.training, scores, sources)
            out[name] = [
                Credited(tokens[row, : len(rollout.responses[row])].double().numpy(), advantage[row].item())
                for row in rows
            ]
        return out

    def scores(self, found: Sequence[Response], credits: Mapping[str, list[Credited]]) -> dict[str, list[Score]]:
        if not found:
            return {}
        signals = {name: [look(r.seen) for r in found] for name, look in SIGNALS.items()}
        seed = derive(self.spec["seed"], "fidelity", "scores")
        return score_all(truths(found), credits, signals, self.settings.draws, seed)

    # --- what the record says ---

    def results(
        self, rollout: Rollout, found: Sequence[Response], scores: Mapping[str, Sequence[Score]]
    ) -> dict[str, Any]:
        tokens = sum(len(r.pieces) for r in found)

        def share(test: Callable[[Response], np.ndarray]) -> float | None:
            return float(sum(test(r).sum() for r in found)) / tokens if tokens else None

        return {
            "accuracy": rollout.correct.mean().item(),
            "mixed_groups": mixed(rollout.correct, self.training.group).double().mean().item(),
            "settled": share(lambda r: r.values["drawn"] == 0),
            "significant": share(lambda r: np.abs(r.values["effect"]) > 2 * r.values["se"]),
            "effect_mean": share(lambda r: np.abs(r.values["effect"])),
            "bias_bound": max(
                (float(r.values["bound"][r.values["drawn"] > 0].max(initial=0)) for r in found), default=None
            ),
            **{
                f"{s.name}/{credit}": s.value
                for credit, several in scores.items()
                for s in several
                if s.category == "all" and credit in self.methods and not math.isnan(s.value)
            },
        }

    def record(
        self, results: dict[str, Any], rollout: Rollout, found: Sequence[Response], forks: int
    ) -> dict[str, Any]:
        s = self.settings
        return {
            "stage": "analyse",
            "spec": self.spec,
            "spec_hash": spec_hash(self.spec),
            **self.opened.identity,
            "engine": type(self.engine).__name__,
            "checkpoint": self.opened.digest,
            "chosen": f"the {len(found)} lowest hashes of (seed, checkpoint, problem, sample) among the responses in "
            f"groups with mixed rewards, at most {s.responses}",
            "results": results,
            "seconds": self.clock,
            "counts": {
                "problems": len(self.problems),
                "responses": len(rollout.responses),
                "measured": len(found),
                "measured_problems": len({r.problem for r in found}),
                "tokens": sum(len(r.pieces) for r in found),
                "forks": forks,
                "continuations": forks * s.samples,
            },
            "provenance": collect(self.inputs),
        }


def credited(
    policy: Policy, rollout: Rollout, method: Method, training: Training, scores: Scores, sources: Sources
) -> tuple[Tensor, Tensor]:
    """(group advantages [N], token advantages [N, T]) at a rollout's first update; 0 where a token is not in the loss.

    Objectives and credits that act inside the update (future KL) do nothing yet at ratio 1.
    """
    rollout = shape(rollout, method.overlong, training.max_tokens)
    advantage = group_advantage(rollout.rewards, rollout.groups, method.advantage)
    signals = gather(policy, rollout, method, training.microbatch_tokens, 1, scores, advantage, sources, {})
    advantage, tokens, _ = token_advantages(method, rollout.rewards, signals)
    selected, _ = selected_tokens(method, signals)
    return advantage, torch.where(selected, tokens, 0.0)


def shards(rows: Sequence[int], group: int, size: int) -> list[list[int]]:
    """Rows in parts of at least `size` (the last may be smaller) that never divide a group.

    >>> shards([0, 1, 4, 5, 9], 4, 3)
    [[0, 1, 4, 5], [9]]
    """
    parts: list[list[int]] = []
    for row in rows:
        if not parts or (len(parts[-1]) >= size and parts[-1][-1] // group != row // group):
            parts.append([])
        parts[-1].append(row)
    return parts

"""Train one cell: rollout, reward, score, credit, update; from the last checkpoint if there is one.

Differs from the usual GRPO loop in three ways. Micro-batches are fixed per rollout, so that the ratio is exactly 1
at the first update; all randomness is a hash of (study seed, purpose, place), so that a killed job repeats what it
lost bit for bit; and outputs are published only at the end, from a state folder that the workflow does not own.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tokencredit.grading import Grader
from tokencredit.model.base import base_folder, eos_ids
from tokencredit.model.checkpoint import export, publish
from tokencredit.model.policy import Policy, load_policy
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.problems.categories import Categoriser
from tokencredit.sampling import make_engine
from tokencredit.study.base import parse
from tokencredit.study.config import Model, Runtime, Training
from tokencredit.study.errors import GoOn, UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.methods import Method
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_table, write_json, write_table
from tokencredit.training.lease import Lease
from tokencredit.training.probes import Sources, monte_carlo, probing
from tokencredit.training.records import category_metrics, rollout_rows, token_rows
from tokencredit.training.rollout import Feed, Rollout, draw, grade, hold, length_targets, refilled, shape
from tokencredit.training.state import AppendLog, StateFolder, storage
from tokencredit.training.stop import Interrupted, StopWatch, timed
from tokencredit.training.update import Batch, Minibatch, NotFinite, prepare, update

log = logging.getLogger(__name__)
LOGS = ("metrics", "rollouts", "tokens", "timings")  # tables that grow with the run


def train(
    spec: dict[str, Any],
    base: Path,
    problems: Path,
    semifactuals: Path | None,
    out: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
    lengths: Path | None = None,
) -> None:
    """Run the training stage of one cell. Inputs by path, outputs under `out`, resumable state under `state`.

    lengths: metrics of the run whose response lengths this one is held to, for a method with a length term.

    Raises UserError (nothing to retry), GoOn (saved: run again to go on), NotFinite (batch saved).
    """
    with storage(state), Lease(state) as lease, StopWatch(runtime.wall_minutes) as stop:
        if lease.taken_over:
            log.warning(lease.taken_over)
        Trainer(spec, base, problems, semifactuals, out, state, runtime, events, stop, lengths).run()


class Trainer:
    """One cell's training run."""

    def __init__(
        self,
        spec: dict[str, Any],
        base: Path,
        problems: Path,
        semifactuals: Path | None,
        out: Path,
        state: Path,
        runtime: Runtime,
        events: Any,
        stop: StopWatch,
        lengths: Path | None = None,
    ):
        self.spec, self.base, self.out, self.runtime, self.events, self.stop = spec, base, out, runtime, events, stop
        self.cell = {"model": spec["model"], "method": spec["method"], "seed": spec["cell_seed"]}
        self.model = parse(Model, spec["settings"], "spec: settings")
        self.method = parse(Method, spec["credit_method"], "spec: credit_method")
        self.training = parse(Training, spec["training"], "spec: training")
        self.inputs = [p for p in (base, problems, semifactuals, lengths) if p is not None]
        identity = {"spec": spec, "inputs": {p.name: file_digest(p) for p in self.inputs}}
        self.state = StateFolder(state, identity)
        self.logs = {n: AppendLog(state / f"{n}.jsonl") for n in LOGS}
        self.step = 0  # optimisation steps done
        self.cursor = 0  # problems of the feed that were asked
        self.resumed = 0
        self.categoriser = Categoriser()
        self.targets = length_targets(self.method.length, lengths)
        self._load_problems(problems, semifactuals)
        self._load_model()

    def _load_problems(self, problems: Path, semifactuals: Path | None) -> None:
        seed, cell_seed = self.spec["seed"], self.spec["cell_seed"]
        rows = read_table("problems", problems).to_pylist()
        if not rows:
            raise UserError(f"{problems}: no problems to train on")
        self.feed = Feed(rows, seed, cell_seed, self.training.subset)
        self.folder = base_folder(self.base)
        self.prompter = Prompter(load_tokenizer(self.folder), self.model.prompt, self.training.max_prompt_tokens)
        self.perturbed: dict[tuple[str, str], tuple[int, ...]] = {}
        wanted = {k for c in self.method.credit if c.kind == "semifactual" for k in c.kinds}
        if not wanted:
            return
        if semifactuals is None:
            raise UserError("this method needs semifactual prompts: pass --semifactuals")
        choices = {r["problem_id"]: r["choices"] for r in rows}
        for row in read_table("semifactuals", semifactuals).to_pylist():
            name = row["problem_id"]
            if row["valid"] and row["kind"] in wanted and name in choices:
                self.perturbed[name, row["kind"]] = self.prompter.ids(row["text"], choices[name])

    def _load_model(self) -> None:
        device = self.runtime.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.policy: Policy = load_policy(
            self.folder,
            self.model.adapter,
            self.model.dtype,
            device,
            self.training.temperature,
            derive(self.spec["seed"], "lora", self.spec["cell_seed"]),
            self.training.score_tile,
            self.model.gradient_checkpointing,
        )
        o = self.training.optimizer
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), o.lr, (o.beta1, o.beta2), o.eps, o.weight_decay, fused=True
        )
        self.engine = make_engine(self.policy.model, kind=self.model.engine, dtype=self.model.dtype)
        self.eos = eos_ids(self.folder)

    def run(self) -> None:
        if self.state.sealed:
            log.info("%s: was finished, its outputs are handed out again; to train anew, delete %s",
                     self._title(), self.state.folder)  # fmt: skip
            self.state.hand_out(self.out)
            return
        self._resume()
        saved = time.monotonic()
        total = self.training.rollouts
        bar = tqdm(range(self.step // self.training.updates, total), desc=self._title(), mininterval=2, unit="rollout")
        bar.total, bar.n = total, self.step // self.training.updates
        with Grader(workers=self.runtime.grader_workers, library=False) as grader:
            for index in bar:
                if self.stop.wanted:
                    self._leave()
                begun = time.monotonic()
                shown = self._rollout_step(index, grader)
                self.stop.longest = max(self.stop.longest, time.monotonic() - begun)
                bar.set_postfix_str(shown, refresh=False)
                if self.step in self.training.evaluated_steps:
                    self._export()
                if time.monotonic() - saved >= self.runtime.save_minutes * 60 and index + 1 < total:
                    self._save()
                    saved = time.monotonic()
        self._finish()

    def _rollout_step(self, index: int, grader: Grader) -> str:
        """One rollout and its updates; returns what the progress bar shows."""
        clock: dict[str, float] = {}
        t = self.training
        try:
            with self.stop.disposable():
                rollout, refill = refilled(
                    lambda lot: self._draw(index, lot, grader, clock), self.method.refill, t.prompts, t.group
                )
                rollout = shape(rollout, self.method.overlong, t.max_tokens)
                if self.method.length is not None:
                    rollout = hold(rollout, self.method.length, self._target())
                effects = monte_carlo(self.engine, self.prompter, grader, self.eos, t)
                forced = probing(self.engine, self.model.engine)
                if forced is None:
                    self.engine.sleep()  # a GPU's memory is the trainer's until the hand-over
                sources = Sources(self.perturbed, self.prompter.pieces, effects, forced)
                batch = prepare(self.policy, rollout, self.method, t, self.step + 1, sources, clock)
                self.engine.sleep()
        except Interrupted:
            self._leave()
        self.cursor += t.prompts * int(refill.get("refill/lots", 1))
        self._log_rollout(batch)
        shares = category_metrics(batch, self.prompter, self.categoriser)
        self._log_metrics({**batch.metrics, **refill, **shares})
        with timed(clock, "update"):
            for minibatch in batch.minibatches:
                self._update(batch, minibatch)
        with timed(clock, "sync"):
            self.engine.update(self.policy.model)
        gap = getattr(self.engine, "gap", None)  # of engines that keep a copy of the weights
        if gap is not None:
            self._log_metrics(gap.metrics())
        self._log_timings(clock, sum(map(len, rollout.responses)))
        return f"reward {batch.metrics['reward_mean']:.3f} length {batch.metrics['length_mean']:.1f}"

    def _target(self) -> float:
        """Response length that this rollout is held to, tokens."""
        if self.step not in self.targets:
            raise UserError(f"{self._title()}: the run it is held to has no length at step {self.step}; train it anew")
        return self.targets[self.step]

    def _draw(self, index: int, lot: int, grader: Grader, clock: dict[str, float]) -> Rollout:
        """Sample and grade one lot of prompts."""
        t = self.training
        with timed(clock, "rollout"):
            start = self.cursor + lot * t.prompts
            drawn = draw(index, self.feed, self.engine, self.prompter, t, self.eos, start, lot)
        with timed(clock, "grade"):
            return grade(*drawn, self.prompter, grader, t.group)

    def _update(self, batch: Batch, minibatch: Minibatch) -> None:
        o = self.training.optimizer
        rate = o.lr * min(1.0, (self.step + 1) / o.warmup_steps) if o.warmup_steps else o.lr
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        try:
            stats = update(self.policy, self.optimizer, batch, minibatch, self.method, o.max_grad_norm)
        except NotFinite as error:
            raise self._failed(batch, minibatch, error) from None
        self.step += 1
        self._log_metrics({**stats, "learning_rate": rate})

    def _failed(self, batch: Batch, minibatch: Minibatch, error: NotFinite) -> NotFinite:
        """Save the batch that made a non-finite step, and say where it is."""
        path = self.state.folder / f"failed-step{self.step + 1}.pt"
        asked = [batch.rollout.problems[g] for g in sorted({int(batch.rollout.groups[r]) for r in minibatch.rows})]
        torch.save(
            {
                "rows": minibatch.rows,
                "prompts": batch.rollout.prompts,
                "responses": batch.rollout.responses,
                "rewards": batch.rollout.rewards,
                "old": batch.old,
                "advantage": batch.advantage,
                "problem_ids": [p["problem_id"] for p in asked],
                "weights": self.policy.trainable_state(),
            },
            path,
        )
        names = ", ".join(p["problem_id"] for p in asked[:4])
        return NotFinite(
            f"{self._title()}, optimisation step {self.step + 1}: {error}; problems {names}...; no weight was changed, "
            f"the batch is in {path}"
        )

    # --- what is written ---

    def _log_rollout(self, batch: Batch) -> None:
        kept = self.training.rollouts_kept
        self.logs["rollouts"].write(rollout_rows(batch, kept, self.step))
        if self.step in (0, *self.training.evaluated_steps, self.training.steps - self.training.updates):
            self.logs["tokens"].write(token_rows(batch, kept, self.step, self.prompter, self.categoriser))

    def _log_metrics(self, values: dict[str, float]) -> None:
        self.logs["metrics"].write(
            [{**self.cell, "step": self.step, "metric": name, "value": float(value)} for name, value in values.items()]
        )
        self.events.metrics(values, self.step)

    def _log_timings(self, clock: dict[str, float], tokens: int) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if self.policy.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated() / 2**20
        values = {**clock, "tokens_per_second": tokens / sum(clock.values()), "peak_memory": peak}
        self.logs["timings"].write(
            [{**self.cell, "step": self.step, "phase": phase, "value": value} for phase, value in values.items()]
        )

    # --- state ---

    def _title(self) -> str:
        return f"train {self.cell['model']}.{self.cell['method']}.seed{self.cell['seed']}"

    def _resume(self) -> None:
        saved, remarks = self.state.load(list(self.logs.values()))
        for remark in remarks:
            log.warning("%s: %s", self._title(), remark)
        if saved is None:
            return
        self.policy.load_trainable(saved["weights"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.cursor, self.resumed = saved["step"], saved["cursor"], saved["resumed"] + 1
        self.policy.forwards = dict(saved["forwards"])
        self.engine.update(self.policy.model)
        log.info("%s: goes on from the checkpoint of step %d", self._title(), self.step)

    def _save(self) -> None:
        content = {
            "step": self.step,
            "cursor": self.cursor,
            "weights": self.policy.trainable_state(),
            "optimizer": self.optimizer.state_dict(),
            "resumed": self.resumed,
            "forwards": dict(self.policy.forwards),
        }
        self.state.save(self.step, content, list(self.logs.values()))

    def _leave(self) -> None:
        if self.step > 0:
            self._save()
        log.info("%s: saved at step %d of %d; run again to go on", self._title(), self.step, self.training.steps)
        raise GoOn

    def _export(self) -> None:
        export(
            self.policy,
            self.folder,
            self.state.folder / "exports" / f"step{self.step}",
            {**self.cell, "step": self.step, "base": os.path.relpath(self.base, self.out / f"step{self.step}")},
            spec_hash(self.spec),
        )

    def _finish(self) -> None:
        """Make the outputs beside the resumable state, which has then served, and hand them out."""
        final = self.state.start_final()
        for step in self.training.evaluated_steps:
            publish(self.state.folder / "exports" / f"step{step}", final / f"step{step}")
        for name, rows in self.logs.items():
            write_table(name, rows.read(), final / f"{name}.parquet")
            rows.close()
        timings = read_table("timings", final / "timings.parquet").to_pylist()
        seconds: dict[str, float] = {}
        for row in timings:
            if row["phase"] not in ("tokens_per_second", "peak_memory"):
                seconds[row["phase"]] = seconds.get(row["phase"], 0.0) + row["value"]
        trained = sum(p.numel() for p in self.policy.parameters())
        write_json(
            final / "train.json",
            {
                "stage": "train",
                "spec": self.spec,
                "spec_hash": spec_hash(self.spec),
                **self.cell,
                "steps": self.step,
                "forwards": self.policy.forwards,
                "resumed": self.resumed,
                "parameters": {"trained": trained, "total": sum(p.numel() for p in self.policy.model.parameters())},
                "seconds": seconds,
                "counts": {"problems": len(self.feed.problems), "perturbed_prompts": len(self.perturbed)},
                "engine": type(self.engine).__name__,
                "provenance": collect(self.inputs),
            },
        )
        self.state.hand_out(self.out)

"""A whole optimisation step, TRL 1.16's and ours, on the same CPU work.

    benchmarks/trl/run.sh [--vocab 32000 151936] [--iterations 1 2] [--rounds 5] [--profile]

4 prompts of 32 tokens x 8 responses, each forced to 64 tokens by never drawing EOS on either side; the model and the
tokenizer of common.py. One step: tokenize, sample, decode, reward, advantages, one update over all 32 rows in two
forward passes of 16 (with --iterations 2: two updates), and for ours the hand-over of the new weights to the sampling
engine. Entropy is computed on both sides. Ours are the trainer's own draw, grade, prepare and update with FastEngine.

The contestants take turns, a step each, in one process; medians after one round to warm up. Import and construction
are outside. "Rollout" is sampling with its tokenizing and decoding (ours: and the hand-over); "update" is the rest.

Differences that stay: ours also scores the rollout before its update (one forward pass more; TRL does that only with
two iterations) and makes the margin; TRL's optimiser is AdamW's for-each form ("adamw_torch"), ours the fused one.

glibc gives buffers of more than 32 MiB back to the system at once, and fresh pages cost TRL, which holds larger ones,
far more than us. run.sh therefore measures a second time with that switched off (MALLOC_MMAP_MAX_=0 and no trimming):
the smaller ratio is what the computation itself is worth.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import EOS, GROUP, METHOD, PROMPTS, machine, quiet, reward, save_model, texts, training, trl_trainer
from transformers import PreTrainedTokenizerFast, TrainerCallback

from tokencredit.model.policy import load_policy
from tokencredit.sampling import Completion, Params, Request
from tokencredit.sampling.fast import FastEngine
from tokencredit.study.config import Adapter
from tokencredit.training.probes import Sources
from tokencredit.training.rollout import Feed, draw, grade
from tokencredit.training.update import prepare, update

PROMPT, RESPONSE, RATE, GOAL = 32, 64, 1e-6, 3.0


class Clock:
    """CPU and wall seconds of blocks: `with clock: ...`, then `take()`."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall

    def take(self) -> tuple[float, float]:
        out, self.cpu, self.wall = (self.cpu, self.wall), 0.0, 0.0
        return out


class Words:
    """A prompter over the shared tokenizer, without a template."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def ids(self, problem: str, choices: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.tokenizer(problem)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


class ByPlace:
    """A grader that rewards as `common.reward` does."""

    def grade(self, items: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(correct=value) for value in reward(items)]


class ForcedLength:
    """The engine, never drawing EOS."""

    def __init__(self, engine: FastEngine):
        self.engine = engine

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        return self.engine.generate(requests, dataclasses.replace(params, eos=(), suppress=(EOS,)))

    def update(self, model: Any) -> None:
        self.engine.update(model)


class Ours:
    """Our trainer's step on the shared model."""

    def __init__(self, folder: Path, prompts: list[str], iterations: int):
        self.policy = load_policy(folder, Adapter(kind="full"), "float32", "cpu", 1.0, 0)
        self.engine = ForcedLength(FastEngine.from_model(self.policy.model, torch.device("cpu")))
        self.prompter = Words(PreTrainedTokenizerFast.from_pretrained(folder))
        self.feed = Feed([{"problem_id": str(i), "problem": p, "choices": [], "answer": "", "answer_kind": "integer"}
                          for i, p in enumerate(prompts)], 0, 0, None)  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), RATE, weight_decay=0.0, fused=True)
        self.training, self.iterations, self.index = training(RESPONSE, PROMPT), iterations, 0

    def step(self, rollout_clock: Clock) -> None:
        with rollout_clock:
            drawn = draw(self.index, self.feed, self.engine, self.prompter, self.training, (EOS,))
        rollout = grade(*drawn, self.prompter, ByPlace(), GROUP)
        if {len(r) for r in rollout.responses} != {RESPONSE}:
            raise RuntimeError("a response has another length")
        batch = prepare(self.policy, rollout, METHOD, self.training, 1, Sources(), {})
        for _ in range(self.iterations):
            for minibatch in batch.minibatches:
                update(self.policy, self.optimizer, batch, minibatch, METHOD, 1.0)
        with rollout_clock:
            self.engine.update(self.policy.model)
        self.index += 1


class Turns(TrainerCallback):
    """Clocks TRL's steps, and lets ours take a step after each of them (after each `iterations`)."""

    def __init__(self, ours: Ours, iterations: int):
        self.ours, self.iterations = ours, iterations
        self.whole, self.rollout = Clock(), Clock()
        self.times: dict[str, list[tuple[float, ...]]] = {"TRL": [], "ours": []}

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.whole.__enter__()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.whole.__exit__()
        if state.global_step % self.iterations:
            return
        self._note("TRL")
        with self.whole:
            self.ours.step(self.rollout)
        self._note("ours")

    def _note(self, name: str) -> None:
        self.times[name].append((*self.rollout.take(), *self.whole.take()))


def race(vocab: int, iterations: int, rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """(rollout CPU, rollout wall, whole CPU, whole wall) of every round, the warm-up round left out."""
    prompts = texts(vocab, [PROMPT] * PROMPTS * (rounds + 1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, vocab)
        trainer = trl_trainer(folder, folder / "out", prompts, (rounds + 1) * iterations, iterations, RESPONSE, RATE)
        turns = Turns(Ours(folder, prompts, iterations), iterations)
        generate = trainer._generate

        def clocked(*args: Any) -> Any:
            with turns.rollout:
                out = generate(*args)
            if {len(row) for row in out[1]} != {RESPONSE}:
                raise RuntimeError("a response of TRL has another length")
            return out

        trainer._generate = clocked
        trainer.add_callback(turns)
        trainer.train()
    return {name: rows[1:] for name, rows in turns.times.items()}


def profile(vocab: int) -> None:
    """Where our step's time goes, by operator."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, vocab)
        ours = Ours(folder, texts(vocab, [PROMPT] * PROMPTS * 3), 1)
        ours.step(Clock())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            ours.step(Clock())
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 151_936])
    parser.add_argument("--iterations", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="only profile our step")
    arguments = parser.parse_args()
    quiet()
    if arguments.profile:
        for vocab in arguments.vocab:
            profile(vocab)
        return
    print(
        "| vocabulary, updates | part | TRL, CPU s | ours, CPU s | TRL over ours | (wall) | range over rounds | goal |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | --- | --- |")
    for iterations in arguments.iterations:
        for vocab in arguments.vocab:
            times = race(vocab, iterations, arguments.rounds)
            parts = {
                "rollout": lambda t: (t[0], t[1]),
                "update": lambda t: (t[2] - t[0], t[3] - t[1]),
                "whole step": lambda t: (t[2], t[3]),
            }
            for part, of in parts.items():
                (trl, wall), (own, own_wall) = (
                    [statistics.median(of(row)[i] for row in times[name]) for i in (0, 1)] for name in ("TRL", "ours")
                )
                each = [of(a)[0] / of(b)[0] for a, b in zip(times["TRL"], times["ours"], strict=True)]
                goal = f"at least {GOAL:.0f}" if part == "whole step" else ""
                print(
                    f"| {vocab:,}, {iterations} | {part} | {trl:.2f} | {own:.2f} | {trl / own:.2f} | {wall / own_wall:.2f} "
                    f"| {min(each):.2f} to {max(each):.2f} | {goal} |",
                    flush=True,
                )
    allocator = (
        "memory kept by the allocator" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else "glibc's default allocator"
    )
    print(f"\nMedians of {arguments.rounds} rounds, {allocator}. {machine()}.\n")


if __name__ == "__main__":
    main()

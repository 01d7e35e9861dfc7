"""Monte Carlo values of prefixes: seconds, and how noisy the effects are, against VinePPO's plain success rates.

    make reproduce && .venv/bin/python benchmarks/fidelity.py [--checkpoint RECORD] [--responses 200] [--samples 64]

Responses of the embedded study's base model (or of a checkpoint) to its training problems, 8 per problem, one thread.
Plain: M continuations of every distinct prefix, V_t their success rate, at every position or where 1 - p is over 0.01.
Ours (training/values.py): M continuations without the sampled token, V_t from the end back. Noise is measured, not
estimated: every estimator runs twice with other seeds, and shown is the root mean square of the two effects' difference
over sqrt(2), for all tokens and for those with 1 - p under 0.1. `prefill`: share of the seconds spent on prompts.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tokencredit.grading import Grader
from tokencredit.model.base import base_prompt, eos_ids
from tokencredit.model.checkpoint import open_checkpoint, read_weights
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.sampling import Params, Request, make_engine
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_table
from tokencredit.training.values import prefix_values, text_grade

RESULTS = Path(__file__).resolve().parent.parent / "results" / "tiny"
GROUP, LIMIT, GOAL_MINUTES = 8, 56, 15
Run = Callable[[int], tuple[torch.Tensor, int]]  # seed -> (effects [N, T], continuations)


@dataclass
class World:
    """The responses that are measured, and what measures them."""

    engine: Any
    eos: tuple[int, ...]
    grade: Any
    problems: list[Any]  # one per response, like all lists below
    prompts: list[tuple[int, ...]]
    drawn: list[Any]
    rewards: list[float]

    @property
    def chance(self) -> torch.Tensor:
        """p of the sampled tokens [N, T]; 1 at padding."""
        out = torch.ones(len(self.drawn), max(len(c.tokens) for c in self.drawn), dtype=torch.float64)
        for row, c in enumerate(self.drawn):
            out[row, : len(c.tokens)] = torch.tensor(c.logprobs, dtype=torch.float64).exp()
        return out


def world(checkpoint: Path, responses: int, grader: Grader) -> World:
    opened = open_checkpoint(checkpoint)
    prompter = Prompter(load_tokenizer(opened.folder), base_prompt(opened.base))
    engine = make_engine(opened.folder, weights=read_weights(opened), device="cpu")
    rows = read_table("problems", RESULTS / "problems" / "train.parquet").to_pylist()[: -(-responses // GROUP)]
    problems = [r for r in rows for _ in range(GROUP)][:responses]
    prompts = [prompter.ids(p["problem"], p["choices"]) for p in problems]
    eos, grade = eos_ids(opened.folder), text_grade(prompter, grader)
    requests = [Request(p, derive(0, "bench", i)) for i, p in enumerate(prompts)]
    drawn = engine.generate(requests, Params(LIMIT, eos=eos))
    rewards = grade(problems, [c.tokens for c in drawn], [c.finish for c in drawn])
    return World(engine, eos, grade, problems, prompts, drawn, list(rewards))


def ours(w: World, samples: int, tolerance: float) -> Run:
    def run(seed: int) -> tuple[torch.Tensor, int]:
        values = prefix_values(
            w.engine, w.prompts, [c.tokens for c in w.drawn], [c.finish for c in w.drawn], w.rewards, w.problems, w.grade,
            samples=samples, eos=w.eos, max_tokens=LIMIT, seeds=[derive(seed, i) for i in range(len(w.drawn))],
            logprobs=[c.logprobs for c in w.drawn], tolerance=tolerance,
        )  # fmt: skip
        return values.effect, values.sampled * samples

    return run


def plain(w: World, samples: int, tolerance: float) -> Run:
    """Success rates of continuations of distinct prefixes; a position with 1 - p <= tolerance takes the next value."""

    def run(seed: int) -> tuple[torch.Tensor, int]:
        chance = w.chance
        keys: dict[tuple[int, ...], tuple[int, int]] = {}
        for row, c in enumerate(w.drawn):
            for t in range(len(c.tokens)):
                if 1 - chance[row, t] > tolerance:
                    keys.setdefault((*w.prompts[row], *c.tokens[:t]), (row, t))
        requests = [Request(k, derive(seed, i, m)) for i, k in enumerate(keys) for m in range(samples)]
        places = [place for place in keys.values() for _ in range(samples)]
        done = w.engine.generate(requests, Params(LIMIT, eos=w.eos))
        whole = [(*w.drawn[row].tokens[:t], *c.tokens)[:LIMIT] for c, (row, t) in zip(done, places, strict=True)]
        right = w.grade([w.problems[row] for row, _ in places], whole, [c.finish for c in done])
        rate = torch.tensor(right, dtype=torch.float64).view(-1, samples).mean(1)
        known = dict(zip(keys, rate.tolist(), strict=True))
        effect = torch.zeros_like(chance)
        for row, c in enumerate(w.drawn):
            after = w.rewards[row]
            for t in reversed(range(len(c.tokens))):
                before = known.get((*w.prompts[row], *c.tokens[:t])) if 1 - chance[row, t] > tolerance else after
                effect[row, t], after = after - before, before
        return effect, len(requests)

    return run


def measure(w: World, run: Run) -> dict[str, float]:
    """Two runs with other seeds: seconds of the first, noise from both."""
    spent = [0.0]
    prefill = w.engine.decoder.prefill

    def timed(prompts: Any) -> Any:
        begun = time.process_time()
        try:
            return prefill(prompts)
        finally:
            spent[0] += time.process_time() - begun

    w.engine.decoder.prefill = timed
    begun = time.process_time()
    effect, continuations = run(1)
    seconds, prompts = time.process_time() - begun, spent[0]
    w.engine.decoder.prefill = prefill
    again, _ = run(2)
    inside = torch.tensor([[t < len(c.tokens) for t in range(effect.shape[1])] for c in w.drawn])
    sure = inside & (1 - w.chance < 0.1)
    noise = [math.sqrt((effect - again)[at].square().mean().item() / 2) for at in (inside, sure)]
    return {"seconds": seconds, "prefill": prompts / seconds, "n": continuations, "all": noise[0], "sure": noise[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=RESULTS / "models" / "scratch" / "base.json")
    parser.add_argument("--responses", type=int, default=200)
    parser.add_argument("--samples", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with Grader(library=False) as grader:
        w = world(arguments.checkpoint, arguments.responses, grader)
        m = arguments.samples
        runs = {
            f"plain, M = {m}, every position": plain(w, m, -1.0),
            f"plain, M = {m}, 1 - p over 0.01": plain(w, m, 0.01),
            f"ours, M = {m}, every position": ours(w, m, 0.0),
            f"ours, M = {m}, tolerance 0.01": ours(w, m, 0.01),
            "ours, M = 8, tolerance 0.02 (oracle credit)": ours(w, 8, 0.02),
        }
        found = {name: measure(w, run) for name, run in tqdm(runs.items(), mininterval=2)}
    tokens = sum(len(c.tokens) for c in w.drawn)
    print(f"{len(w.drawn)} responses, {tokens} tokens, {sum(w.rewards) / len(w.rewards):.0%} right; "
          f"goal: M = 64 within {GOAL_MINUTES} minutes on 2 cores\n")  # fmt: skip
    print("| estimator | continuations | CPU s | prefill | noise of effects | where 1 - p < 0.1 |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, r in found.items():
        print(f"| {name} | {r['n']:,} | {r['seconds']:.0f} | {r['prefill']:.2f} | {r['all']:.4f} | {r['sure']:.4f} |")


if __name__ == "__main__":
    main()

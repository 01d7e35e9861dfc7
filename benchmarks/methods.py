"""What a method costs over GRPO: whole rollout steps of the embedded study, and the update at a large vocabulary.

    make reproduce && .venv/bin/python benchmarks/methods.py

Every measured step starts from the base model and repeats the same rollout (same problems, same seeds, same tokens),
methods alternating within a round, so that the only difference is the method. CPU seconds, medians over rounds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from tokencredit.grading import Grader
from tokencredit.model.policy import Policy
from tokencredit.study import load_study, specs
from tokencredit.study.config import Runtime, Training
from tokencredit.study.methods import MarginCredit, Method
from tokencredit.training.rollout import Rollout
from tokencredit.training.run import Trainer
from tokencredit.training.stop import StopWatch
from tokencredit.training.update import prepare, update

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "tiny"
ROUNDS = 9
VOCAB, ROWS, LENGTH = 151_936, 32, 64


class Silent:
    def metrics(self, values: dict[str, float], step: int | None = None) -> None:
        pass


class Bench:
    """One method's trainer; `run` repeats its first rollout step from the base model."""

    def __init__(self, method: str, folder: Path, step: int = 0):
        spec = specs(load_study(yaml.safe_load((ROOT / "config.yaml").read_text())))[f"train.scratch.{method}.seed0"]
        files = (RESULTS / name for name in ("models/scratch/base.json", "problems/train.parquet",
                                              "problems/semifactuals.parquet"))  # fmt: skip
        self.trainer = Trainer(
            spec, *files, folder / "out", folder / "state", Runtime(device="cpu"), Silent(), StopWatch(None)
        )
        self.step = step
        self.weights = {k: v.clone() for k, v in self.trainer.policy.trainable_state().items()}
        self.optimizer = copy.deepcopy(self.trainer.optimizer.state_dict())
        self.seconds: list[float] = []
        self.forwards: dict[str, int] = {}

    def run(self, grader: Grader) -> None:
        t = self.trainer
        t.policy.load_trainable(self.weights)
        t.optimizer.load_state_dict(copy.deepcopy(self.optimizer))
        t.engine.update(t.policy.model)
        t.step = self.step
        t.policy.forwards.clear()
        begun = time.process_time()
        t._rollout_step(0, grader)
        self.seconds.append(time.process_time() - begun)
        self.forwards = dict(t.policy.forwards)

    def probe_share(self) -> float:
        """Share of the step spent on probes, from the step's own clock (wall), median over rounds."""
        steps: list[dict[str, float]] = []
        for row in self.trainer.logs["timings"].read():
            if row["phase"] == "rollout":
                steps.append({})
            if row["phase"] not in ("tokens_per_second", "peak_memory"):
                steps[-1][row["phase"]] = row["value"]
        return statistics.median(s.get("probe", 0.0) / sum(s.values()) for s in steps[1:])


def whole_steps() -> None:
    with tempfile.TemporaryDirectory() as name, Grader(library=False) as grader:
        benches = {
            "GRPO": Bench("grpo", Path(name) / "a"),
            "MCPO": Bench("mcpo", Path(name) / "b"),
            "SCAPO, active": Bench("scapo", Path(name) / "c"),
            "SCAPO, after N_0": Bench("scapo", Path(name) / "d", step=16),
        }
        for _ in range(ROUNDS + 1):  # one to warm up
            for bench in benches.values():
                bench.run(grader)
        base = statistics.median(benches["GRPO"].seconds[1:])
        print("| step of the embedded study | CPU s | over GRPO | probes' share | rows scored / probed / updated |")
        print("| --- | --- | --- | --- | --- |")
        for name_, bench in benches.items():
            seconds = statistics.median(bench.seconds[1:])
            f = bench.forwards
            print(
                f"| {name_} | {seconds:.3f} | {seconds / base:.3f} | {bench.probe_share():.2f} "
                f"| {f.get('score', 0)} / {f.get('probe', 0)} / {f.get('update', 0)} |"
            )


def large_vocabulary() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        head_dim=32, intermediate_size=512, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    policy = Policy(Qwen3ForCausalLM(config).eval(), 1.0)
    training = Training(prompts=4, group=8, rollouts=1, updates=2, microbatch_tokens=4096)
    tokens = torch.randint(1, VOCAB, (ROWS, LENGTH)).tolist()
    rollout = Rollout(
        problems=[{"problem_id": str(i)} for i in range(4)],
        prompts=[tuple(tokens[i // 8][:32]) for i in range(ROWS)],
        responses=[tuple(row) for row in tokens],
        finish=["stop"] * ROWS,
        texts=[""] * ROWS,
        groups=torch.arange(4).repeat_interleave(8),
        rewards=torch.tensor([float(i % 2) for i in range(ROWS)], dtype=torch.float64),
        sampler_logprobs=[(0.0,) * LENGTH] * ROWS,
        row_seeds=list(range(ROWS)),
    )
    methods: dict[str, Any] = {"GRPO": Method(), "MCPO": Method(credit=(MarginCredit(kind="margin"),))}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)
    for _ in range(ROUNDS + 1):
        for name, method in methods.items():
            begun = time.process_time()
            batch = prepare(policy, rollout, method, training, 1, {}, {})
            for minibatch in batch.minibatches:
                update(policy, optimizer, batch, minibatch, method, 1.0)
            seconds[name].append(time.process_time() - begun)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print(f"\n| score and two updates, {VOCAB:,} words, {ROWS} x {LENGTH} tokens | CPU s | over GRPO |")
    print("| --- | --- | --- |")
    for name, value in medians.items():
        print(f"| {name} | {value:.3f} | {value / medians['GRPO']:.3f} |")


if __name__ == "__main__":
    if not (RESULTS / "problems" / "semifactuals.parquet").exists():
        sys.exit("run `make reproduce` first: the embedded study's base model and problems are measured")
    torch.set_num_threads(1)
    whole_steps()
    large_vocabulary()

"""What a method costs over GRPO: whole rollout steps of the embedded study, and the update at a large vocabulary.

    make reproduce && .venv/bin/python benchmarks/methods.py [--profile]

Every measured step starts from the base model and repeats the same rollout (same problems, same seeds, same tokens),
methods in turn, every other round in reverse, so that the only difference is the method; GRPO runs twice, and its
distance to itself is the noise of the measurement. CPU seconds, medians over rounds.
The costs per token measured there then say what SCAPO's probes would be of a step with longer prompts and responses
(linear in tokens: attention's square is left out, which is the same for scoring and probing).

--profile: one SCAPO step instead, by phase and by operator.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

from tokencredit.grading import Grader
from tokencredit.model.policy import Policy
from tokencredit.study import load_study, specs
from tokencredit.study.config import Runtime, Training
from tokencredit.study.methods import MarginCredit, Method
from tokencredit.training.probes import Sources
from tokencredit.training.rollout import Rollout
from tokencredit.training.run import Trainer
from tokencredit.training.stop import StopWatch
from tokencredit.training.update import prepare, update

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "tiny"
ROUNDS, LARGE_ROUNDS = 24, 8  # even: every order as often as its reverse
VOCAB, ROWS, LENGTH = 151_936, 32, 64
T = TypeVar("T")
PAPER = {"prompt": 1024, "kinds": 4, "steps": 600, "active": 120}  # SCAPO: 300 rollouts x 2 updates, N_0 = 120
GOALS = {"MCPO": "at most 1.02", "SCAPO, active": "probes at most 0.45", "SCAPO, after N_0": "probes 0"}


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
        self.tokens: Counter[str] = Counter()  # of the last step: prompt and response tokens by purpose, and drawn ones
        self._count_tokens()

    def _count_tokens(self) -> None:
        score = self.trainer.policy.score

        def counted(prompts: Sequence[Any], responses: Sequence[Any], purpose: str) -> Any:
            self.tokens[purpose] += sum(map(len, prompts)) + sum(map(len, responses))
            self.tokens["rollout"] += sum(map(len, responses)) if purpose == "score" else 0
            return score(prompts, responses, purpose)

        self.trainer.policy.score = counted  # type: ignore[method-assign]

    def run(self, grader: Grader) -> None:
        t = self.trainer
        t.policy.load_trainable(self.weights)
        t.optimizer.load_state_dict(copy.deepcopy(self.optimizer))
        t.engine.update(t.policy.model)
        t.step = self.step
        t.policy.forwards.clear()
        self.tokens.clear()
        begun = time.process_time()
        t._rollout_step(0, grader)
        self.seconds.append(time.process_time() - begun)
        self.forwards = dict(t.policy.forwards)

    def phases(self) -> dict[str, float]:
        """Seconds of each phase by the step's own clock (wall), median over rounds."""
        steps: list[dict[str, float]] = []
        for row in self.trainer.logs["timings"].read():
            if row["phase"] == "rollout":
                steps.append({})
            if row["phase"] not in ("tokens_per_second", "peak_memory"):
                steps[-1][row["phase"]] = row["value"]
        steps = steps[1:] or steps
        return {phase: statistics.median(s[phase] for s in steps) for phase in steps[0]}

    def probe_share(self) -> float:
        phases = self.phases()
        return phases.get("probe", 0.0) / sum(phases.values())


def in_turn(benches: Mapping[str, T], rounds: int) -> Iterator[tuple[str, T]]:
    """One round to warm up, then each of `rounds` in the reverse order of the one before."""
    for number in range(rounds + 1):
        yield from reversed(benches.items()) if number % 2 else benches.items()


def whole_steps() -> None:
    with tempfile.TemporaryDirectory() as name, Grader(library=False) as grader:
        benches = {
            "GRPO": Bench("grpo", Path(name) / "a"),
            "GRPO, again": Bench("grpo", Path(name) / "e"),
            "MCPO": Bench("mcpo", Path(name) / "b"),
            "SCAPO, active": Bench("scapo", Path(name) / "c"),
            "SCAPO, after N_0": Bench("scapo", Path(name) / "d", step=16),
        }
        for _, bench in in_turn(benches, ROUNDS):
            bench.run(grader)
        base = benches["GRPO"].seconds[1:]
        print(
            "| step of the embedded study | CPU s | over GRPO | range over rounds | probes' share | rows scored / probed / updated | goal |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for name_, bench in benches.items():
            seconds = statistics.median(bench.seconds[1:])
            each = sorted(a / b for a, b in zip(bench.seconds[1:], base, strict=True))
            f = bench.forwards
            print(
                f"| {name_} | {seconds:.3f} | {statistics.median(each):.3f} | {each[0]:.2f} to {each[-1]:.2f} "
                f"| {bench.probe_share():.2f} | {f.get('score', 0)} / {f.get('probe', 0)} / {f.get('update', 0)} | {GOALS.get(name_, '')} |"
            )
        longer(benches["SCAPO, active"])


def longer(bench: Bench) -> None:
    """The probes' share at other lengths from this bench's costs per token, and at the paper's."""
    phases = bench.phases()
    cost = {p: phases[p] / bench.tokens[p] for p in ("rollout", "score", "probe", "update")}
    print("\nMicroseconds a token: " + ", ".join(f"{p} {1e6 * c:.1f}" for p, c in cost.items()) + ".\n")
    print("| prompt, response tokens | probes' share while active | of a whole run (active for a fifth) |")
    print("| --- | --- | --- |")

    def share(prompt: int, response: int, draw: float) -> tuple[float, float]:
        both = prompt + response
        probe = PAPER["kinds"] * both * cost["probe"]
        rest = response * draw + both * (cost["score"] + cost["update"])
        active = PAPER["active"] / PAPER["steps"]
        return probe / (probe + rest), active * probe / (active * probe + rest)

    for response in (1024, 4096, 16_384):
        a, b = share(PAPER["prompt"], response, cost["rollout"])
        print(f"| {PAPER['prompt']:,}, {response:,} | {a:.3f} | {b:.3f} |")
    for factor in (10, 30, 100):
        a, b = share(PAPER["prompt"], 4096, factor * cost["score"])
        print(f"| {PAPER['prompt']:,}, 4,096, if drawing a token cost {factor} times scoring it | {a:.3f} | {b:.3f} |")


def profile() -> None:
    """One SCAPO step by phase and by operator."""
    with tempfile.TemporaryDirectory() as name, Grader(library=False) as grader:
        bench = Bench("scapo", Path(name))
        for _ in range(3):
            bench.run(grader)
        phases = bench.phases()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            bench.run(grader)
    print(", ".join(f"{p} {1e3 * s:.0f} ms" for p, s in phases.items()))
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=45))


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
        correct=torch.tensor([float(i % 2) for i in range(ROWS)], dtype=torch.float64),
        sampler_logprobs=[(0.0,) * LENGTH] * ROWS,
        row_seeds=list(range(ROWS)),
    )
    methods: dict[str, Any] = {
        "GRPO": Method(),
        "GRPO, again": Method(),
        "MCPO": Method(credit=(MarginCredit(kind="margin"),)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)
    for name, method in in_turn(methods, LARGE_ROUNDS):
        begun = time.process_time()
        batch = prepare(policy, rollout, method, training, 1, Sources(), {})
        for minibatch in batch.minibatches:
            update(policy, optimizer, batch, minibatch, method, 1.0)
        seconds[name].append(time.process_time() - begun)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print(f"\n| score and two updates, {VOCAB:,} words, {ROWS} x {LENGTH} tokens | CPU s | over GRPO | goal |")
    print("| --- | --- | --- | --- |")
    for name, value in medians.items():
        each = statistics.median(a / b for a, b in zip(seconds[name][1:], seconds["GRPO"][1:], strict=True))
        print(f"| {name} | {value:.3f} | {each:.3f} | {'at most 1.05' if name == 'MCPO' else ''} |")


if __name__ == "__main__":
    if not (RESULTS / "problems" / "semifactuals.parquet").exists():
        sys.exit("run `make reproduce` first: the embedded study's base model and problems are measured")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true")
    if parser.parse_args().profile:
        profile()
    else:
        whole_steps()
        large_vocabulary()
    print(
        f"\nOne thread; torch {torch.__version__}, transformers {version('transformers')}, Python {sys.version.split()[0]}."
    )

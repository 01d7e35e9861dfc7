"""What a GPU makes of the trainer, at the papers' shapes: memory, speed, determinism. Under 8 minutes on one GPU.

    python benchmarks/gpu_check.py [--out gpu_check.json] [--minutes 7.5]     on a GPU
    python benchmarks/gpu_check.py --twin                                     the same code at small shapes, on a CPU

Needs torch, transformers, peft and this package; weights are random, nothing is fetched. Three parts, the dearest last;
one that would pass the time limit is left out, and the result says so.

  passes        one prompt and one response of 16,384 tokens through Qwen3-1.7B and 4B with LoRA, bfloat16: the score
                pass, a probe (log-probabilities alone), and forward with backward under activation checkpointing
  determinism   two updates from the same weights, with torch's deterministic algorithms on and off: equal bits?
  steps         whole updates of GRPO, MCPO and SCAPO, every parameter of Qwen3-1.7B trained: score, probe and update in
                seconds, the probes' share; beside it what drawing the tokens with our own engine would cost
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: deterministic matrix products

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokencredit.model.policy import Policy, for_training, precisions
from tokencredit.plan.shapes import published
from tokencredit.sampling import Params, Request, Unsupported, make_engine
from tokencredit.study.config import Adapter, Training
from tokencredit.study.methods import MarginCredit, Method, SemifactualCredit
from tokencredit.training.probes import Sources
from tokencredit.training.rollout import Rollout
from tokencredit.training.update import prepare, update

KINDS = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
METHODS = {
    "GRPO": Method(),
    "MCPO": Method(credit=(MarginCredit(kind="margin"),)),
    "SCAPO, probing": Method(credit=(SemifactualCredit(kind="semifactual", strength=0.01, steps=120),)),
}
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "intermediate_size": 384, "vocab_size": 8000, "tie_word_embeddings": True, "model_type": "qwen3"}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What is measured. rows: responses of a step, in groups of 8; tokens: of its responses, from least to most."""

    device: str
    shapes: dict[str, dict[str, Any]]
    prompt: int
    response: int
    rows: int
    least: int
    most: int
    microbatch: int
    decode: tuple[int, int]  # rows, tokens
    repeats: int


def sizes(twin: bool) -> Sizes:
    if twin:
        return Sizes(
            "cpu",
            {"small": SMALL, "small, twice as wide": SMALL | {"hidden_size": 256, "head_dim": 64}},
            64,
            1024,
            16,
            32,
            96,
            1024,
            (16, 16),
            3,
        )
    known = published()
    shapes = {name: known[f"Qwen/{name}-Base"] for name in ("Qwen3-1.7B", "Qwen3-4B")}
    return Sizes("cuda", shapes, 1024, 16_384, 32, 1024, 7168, 16_384, (128, 128), 3)


class Clock:
    """Seconds of what has finished on the device, and the peak of its memory."""

    def __init__(self, device: str):
        self.cuda = device == "cuda"

    def __call__(self, work: Callable[[], Any]) -> tuple[float, float | None]:
        """(seconds, GiB at the peak above what lay there before; None on a CPU)."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begun = time.perf_counter()
        work()
        if not self.cuda:
            return time.perf_counter() - begun, None
        torch.cuda.synchronize()
        return time.perf_counter() - begun, (torch.cuda.max_memory_allocated() - before) / 2**30


def make_policy(shape: dict[str, Any], adapter: Adapter, device: str) -> Policy:
    """Random weights at a published shape, bfloat16 as the studies keep them; made on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {k: v for k, v in shape.items() if k != "model_type"}
    config = AutoConfig.for_model(shape["model_type"], max_position_embeddings=32_768, **values)
    stored, autocast = precisions(adapter, "bfloat16")
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=stored, attn_implementation="sdpa")
    policy = Policy(for_training(model, adapter, 0, checkpointing=True), 1.0, autocast=autocast)
    policy.model.to(device)
    return policy


def ids(count: int, vocab: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def passes(s: Sizes) -> list[dict[str, Any]]:
    """One long response through each shape."""
    clock, out = Clock(s.device), []
    for name, shape in s.shapes.items():
        policy = make_policy(shape, Adapter(kind="lora"), s.device)
        vocab = shape["vocab_size"]
        prompt, response = [ids(s.prompt, vocab, 1)], [ids(s.response, vocab, 2)]

        def score(purpose: str, policy: Policy = policy, prompt: Any = prompt, response: Any = response) -> None:
            with torch.no_grad():
                policy.score(prompt, response, purpose)

        def learn(policy: Policy = policy, prompt: Any = prompt, response: Any = response) -> None:
            policy.score(prompt, response, "update").logprob.mean().backward()
            for parameter in policy.parameters():
                parameter.grad = None

        for what, work in (("score", lambda: score("score")), ("probe", lambda: score("probe")), ("update", learn)):
            readings = [clock(work) for _ in range(s.repeats + 1)][1:]
            seconds = statistics.median(r[0] for r in readings)
            out.append(
                {
                    "shape": name,
                    "pass": what,
                    "tokens": s.prompt + s.response,
                    "seconds": seconds,
                    "tokens_per_second": (s.prompt + s.response) / seconds,
                    "gib_above_weights": readings[-1][1],
                    "gib_of_logits": s.response * vocab * 4 / 2**30,
                }
            )
        del policy
        free(s)
    return out


def make_rollout(s: Sizes, vocab: int, prompt: int) -> Rollout:
    """Random responses of evenly spread lengths, half of them right in every group."""
    step = (s.most - s.least) / max(1, s.rows - 1)
    responses = [ids(round(s.least + i * step), vocab, 10 + i) for i in range(s.rows)]
    return Rollout(
        problems=[{"problem_id": str(i)} for i in range(s.rows // 8)],
        prompts=[ids(prompt, vocab, i // 8) for i in range(s.rows)],
        responses=responses,
        finish=["stop"] * s.rows,
        texts=[""] * s.rows,
        groups=torch.arange(s.rows // 8).repeat_interleave(8),
        correct=torch.tensor([float(i % 2) for i in range(s.rows)], dtype=torch.float64),
        sampler_logprobs=[(0.0,) * len(r) for r in responses],
        row_seeds=list(range(s.rows)),
    )


def steps(s: Sizes) -> dict[str, Any]:
    """Score, probe and two updates of each method over one rollout, and the rate of our own engine."""
    name, shape = next(iter(s.shapes.items()))
    policy = make_policy(shape, Adapter(kind="full"), s.device)
    vocab, prompt = shape["vocab_size"], s.prompt
    rollout = make_rollout(s, vocab, prompt)
    training = Training(prompts=s.rows // 8, group=8, rollouts=1, updates=2, microbatch_tokens=s.microbatch)
    perturbed = {
        (p["problem_id"], k): ids(prompt, vocab, 99 + j) for j, k in enumerate(KINDS) for p in rollout.problems
    }
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-6, fused=True)
    clock, table = Clock(s.device), []
    for method, settings in METHODS.items():
        readings = []
        for _ in range(2):  # the first warms up
            phases: dict[str, float] = {}
            held: list[Any] = []

            def ready(settings: Method = settings, phases: dict[str, float] = phases, held: list[Any] = held) -> None:
                held.append(prepare(policy, rollout, settings, training, 1, Sources(perturbed), phases))

            def learn(settings: Method = settings, held: list[Any] = held) -> None:
                for minibatch in held[0].minibatches:
                    update(policy, optimizer, held[0], minibatch, settings, 1.0)

            whole, first = clock(ready)
            probe = phases.get("probe", 0.0)
            seconds, second = clock(learn)
            peaks = [p for p in (first, second) if p is not None]
            readings.append(
                {
                    "method": method,
                    "score": whole - probe,
                    "probe": probe,
                    "update": seconds,
                    "gib": max(peaks, default=None),
                }
            )
        table.append(readings[-1])
    responses = sum(map(len, rollout.responses))
    rate = decode(s, policy, vocab)
    for row in table:
        row["total"] = row["score"] + row["probe"] + row["update"]
        row["probe_share"] = row["probe"] / row["total"]
        if rate:
            row["probe_share_with_our_sampler"] = row["probe"] / (row["total"] + responses / rate)
    return {"shape": name, "responses": s.rows, "response_tokens": responses, "prompt_tokens": prompt,
            "decoded_per_second": rate, "methods": table}  # fmt: skip


def decode(s: Sizes, policy: Policy, vocab: int) -> float | None:
    """Tokens a second of our fast engine; None where it cannot run the model."""
    rows, tokens = s.decode
    try:
        engine = make_engine(policy.model, kind="fast", device=s.device, dtype=torch.bfloat16)
    except Unsupported as error:
        print(f"our engine is not measured: {error}", file=sys.stderr)
        return None
    requests = [Request(ids(32, vocab, i // 8), i) for i in range(rows)]
    engine.generate(requests, Params(4))
    seconds, _ = Clock(s.device)(lambda: engine.generate(requests, Params(tokens)))
    return rows * tokens / seconds


def determinism(s: Sizes) -> list[dict[str, Any]]:
    """Whether two runs of the same updates give the same bits, and what asking for that costs."""
    shape = next(iter(s.shapes.values())) | {"num_hidden_layers": 2}
    small = Sizes(**{**vars(s), "rows": 16, "least": s.least // 2, "most": s.most // 4 + s.least})
    rollout = make_rollout(small, shape["vocab_size"], s.prompt // 4)
    training = Training(prompts=2, group=8, rollouts=1, updates=2, microbatch_tokens=s.microbatch)
    out = []
    for strict in (False, True):
        torch.use_deterministic_algorithms(strict)
        results, seconds = [], []
        for _ in range(2):
            policy = make_policy(shape, Adapter(kind="full"), s.device)
            optimizer = torch.optim.AdamW(policy.parameters(), 1e-4, fused=True)

            def work(policy: Policy = policy, optimizer: Any = optimizer) -> None:
                batch = prepare(policy, rollout, METHODS["MCPO"], training, 1, Sources(), {})
                for minibatch in batch.minibatches:
                    update(policy, optimizer, batch, minibatch, METHODS["MCPO"], 1.0)

            seconds.append(Clock(s.device)(work)[0])
            results.append([p.detach().clone() for p in policy.parameters()])
            del policy, optimizer
            free(s)
        equal = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        out.append({"deterministic_algorithms": strict, "equal_bits": equal, "seconds": seconds[-1]})
    torch.use_deterministic_algorithms(False)
    return out


def free(s: Sizes) -> None:
    if s.device == "cuda":
        torch.cuda.empty_cache()


def show(found: dict[str, Any]) -> None:
    """The parts that were measured, as tables."""
    print(f"\n{found['device']}, torch {found['torch']}\n")
    if "passes" in found:
        print("| shape | pass | tokens | seconds | tokens/s | GiB above the weights | float32 logits, GiB |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
        for r in found["passes"]:
            print(
                f"| {r['shape']} | {r['pass']} | {r['tokens']:,} | {r['seconds']:.3f} | {r['tokens_per_second']:,.0f} | {gib(r['gib_above_weights'])} | {r['gib_of_logits']:.1f} |"
            )
    if "determinism" in found:
        print("\n| deterministic algorithms | two runs give equal bits | seconds |\n| --- | --- | ---: |")
        for r in found["determinism"]:
            print(
                f"| {'on' if r['deterministic_algorithms'] else 'off'} | {'yes' if r['equal_bits'] else 'no'} | {r['seconds']:.2f} |"
            )
    if "steps" in found:
        p = found["steps"]
        print(
            f"\n{p['shape']}, {p['responses']} responses of {p['response_tokens']:,} tokens in all, prompts of {p['prompt_tokens']:,}.",
            end=" ",
        )
        print(f"Our engine draws {p['decoded_per_second']:,.0f} tokens/s.\n" if p["decoded_per_second"] else "\n")
        print("| step | score, s | probe, s | update, s | GiB above the weights | probes' share | with our sampler |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for r in p["methods"]:
            print(
                f"| {r['method']} | {r['score']:.2f} | {r['probe']:.2f} | {r['update']:.2f} | {gib(r['gib'])} | {r['probe_share']:.3f} | {r.get('probe_share_with_our_sampler', float('nan')):.3f} |"
            )
    for name, why in found["left_out"].items():
        print(f"\n{name} was left out: {why}")


def gib(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", action="store_true", help="small shapes on a CPU")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--minutes", type=float, default=7.5, help="no part begins after this; the dear ones earlier")
    args = parser.parse_args()
    if not args.twin and not torch.cuda.is_available():
        sys.exit("no GPU here; --twin runs the same code on a CPU")
    s, begun = sizes(args.twin), time.perf_counter()
    found: dict[str, Any] = {
        "device": "CPU, one thread (the twin: small shapes)" if args.twin else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "left_out": {},
    }
    torch.set_num_threads(1)
    for name, part in (("passes", passes), ("determinism", determinism), ("steps", steps)):
        spent = (time.perf_counter() - begun) / 60
        if spent > args.minutes * (1.0 if name == "passes" else 0.7):
            found["left_out"][name] = f"{spent:.1f} minutes had passed"
            continue
        try:
            found[name] = part(s)
        except torch.cuda.OutOfMemoryError as error:
            found["left_out"][name] = f"out of memory ({str(error)[:200]})"
        free(s)
        print(f"{name}: {(time.perf_counter() - begun) / 60:.1f} min", file=sys.stderr)
        if args.out:  # after each part: what was measured is not lost with the next
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()

"""One frozen rollout through TRL 1.16's GRPO, GSPO and SAPO and through ours: loss, gradient norm, weights after one and two updates.

    benchmarks/trl/run.sh        # or: benchmarks/trl/.venv/bin/python benchmarks/trl/parity.py

Same model, tokens, lengths (prompts 5 to 20, responses 1 to 24 tokens), rewards and AdamW; 16 rows a forward pass.
TRL gets the tokens by its own `rollout_func` and computes everything else itself. Both updates use the whole rollout,
so that in the second the ratios have left 1 and the clip binds (the rate is high for that reason).

Ours is set to TRL's conventions where they differ: eps 1e-4 beside the standard deviation (ours 1e-6), clip 0.2 on
both sides (ours 0.20 / 0.28), no dual clip (ours 10). Left as they are, and only rounding apart: TRL pads prompts on
the left and deals rows to forward passes at random, ours pads on the right and sorts by length; TRL takes the first
update's ratio to be 1 by definition and scores again only for the second, ours scores first; TRL's AdamW is
torch's for-each form, ours the fused one. For GSPO and SAPO ours averages as TRL does there, over responses (the
product's studies use the token mean for every method, as SCAPO's do).

AdamW divides a gradient by its own size, so weights whose gradient is all rounding move by rounding's sign, a full
rate; the last column shows how far ours parts from itself when only the micro-batches differ.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import (
    FIRST,
    GROUP,
    METHODS,
    MICRO,
    PROMPTS,
    machine,
    quiet,
    reward,
    save_model,
    texts,
    training,
    trl_trainer,
)

from tokencredit.model.policy import load_policy
from tokencredit.study.config import Adapter
from tokencredit.training.probes import Sources
from tokencredit.training.rollout import Rollout
from tokencredit.training.update import prepare, update

VOCAB, RATE, LONGEST = 2048, 3e-4, 24
BUDGET = MICRO * (20 + LONGEST)
TOLERANCE = (1e-5, 1e-4)  # relative; the second update starts from weights that rounding has already parted


def frozen_rollout() -> tuple[list[str], Rollout]:
    """Prompts as text, and the rollout of random tokens."""
    rng = random.Random(2)
    asked = texts(VOCAB, [5, 20, 11, 8])
    rows = PROMPTS * GROUP
    responses = [tuple(rng.randrange(FIRST, VOCAB) for _ in range(rng.randint(1, LONGEST))) for _ in range(rows)]
    return asked, Rollout(
        problems=[{"problem_id": str(i)} for i in range(PROMPTS)],
        prompts=[tuple(int(w[1:]) for w in asked[i // GROUP].split()) for i in range(rows)],
        responses=responses,
        finish=["length"] * rows,
        texts=[""] * rows,
        groups=torch.arange(PROMPTS).repeat_interleave(GROUP),
        correct=torch.tensor(reward(responses), dtype=torch.float64),
        sampler_logprobs=[(0.0,) * len(r) for r in responses],
        row_seeds=list(range(rows)),
    )


Trace = dict[str, list[Any]]


def note(trace: Trace, model: Any) -> None:
    trace["weights"].append({n: p.detach().clone() for n, p in model.named_parameters()})


def theirs(folder: Path, asked: list[str], rollout: Rollout, name: str) -> Trace:
    """Loss, gradient norm and weights of two updates of TRL."""
    trace: Trace = {"loss": [0.0, 0.0], "norm": [], "weights": [], "clipped": []}

    def frozen(prompts: list[str], trainer: Any) -> dict[str, Any]:
        if prompts != [p for p in asked for _ in range(GROUP)]:
            raise RuntimeError("TRL asked for other prompts, or in another order")
        ids = {"prompt_ids": rollout.prompts, "completion_ids": rollout.responses}
        return {k: [list(row) for row in rows] for k, rows in ids.items()} | {"logprobs": None}

    trainer = trl_trainer(folder, folder / "out", asked, 2, 2, LONGEST, RATE, frozen, METHODS[name][1])
    note(trace, trainer.model)
    loss, clip = trainer.compute_loss, trainer.accelerator.clip_grad_norm_

    def compute_loss(*args: Any, **more: Any) -> Any:
        value = loss(*args, **more)
        trace["loss"][trainer.state.global_step] += float(value.detach())
        return value

    def clip_grad_norm(*args: Any, **more: Any) -> Any:
        norm = clip(*args, **more)
        trace["norm"].append(float(norm))
        return norm

    trainer.compute_loss, trainer.accelerator.clip_grad_norm_ = compute_loss, clip_grad_norm
    trainer.optimizer = trainer.create_optimizer()

    def after_step(*_: Any) -> None:
        note(trace, trainer.model)
        clipped = trainer._metrics["train"].get("clip_ratio/region_mean", [0.0])
        trace["clipped"].append(statistics.mean(clipped[-2:]))

    trainer.optimizer.register_step_post_hook(after_step)
    trainer.train()
    return trace


def ours(folder: Path, rollout: Rollout, budget: int, name: str) -> Trace:
    """The same of the trainer's own prepare and update, `budget` tokens a forward pass."""
    trace: Trace = {"loss": [], "norm": [], "weights": [], "clipped": []}
    policy = load_policy(folder, Adapter(kind="full"), "float32", "cpu", 1.0, 0)
    optimizer = torch.optim.AdamW(policy.parameters(), RATE, (0.9, 0.999), 1e-8, 0.0, fused=True)
    note(trace, policy.model)
    settings = training(LONGEST, 20).model_copy(update={"microbatch_tokens": budget})
    method = METHODS[name][0]
    batch = prepare(policy, rollout, method, settings, 1, Sources(), {})
    for _ in range(2):
        stats = update(policy, optimizer, batch, batch.minibatches[0], method, 1.0)
        trace["loss"].append(stats["loss"])
        trace["norm"].append(stats["grad_norm"])
        trace["clipped"].append(stats.get("clipped_high", 0.0) + stats.get("clipped_low", 0.0))
        note(trace, policy.model)
    return trace


def apart(a: Trace, b: Trace, after: int) -> tuple[float, float]:
    """(norm of the difference of the weights over the norm of how far they have moved, largest difference)."""
    start, x, y = a["weights"][0], a["weights"][after], b["weights"][after]
    difference = torch.cat([(x[n] - y[n]).double().flatten() for n in x])
    moved = torch.cat([(x[n] - start[n]).double().flatten() for n in x])
    return float(difference.norm() / moved.norm()), float(difference.abs().max())


def compare(method: str, a: Trace, b: Trace, c: Trace) -> list[str]:
    """Print a method's rows of the table; returns what is not equal."""
    failed = []
    for i, which in enumerate(("first", "second")):
        for label, key in (("loss", "loss"), ("gradient norm", "norm")):
            x, y, z = a[key][i], b[key][i], c[key][i]
            print(f"| {method}, {which} update, {label} | {x:.8f} | {y:.8f} | {abs(x - y):.1e} | {abs(y - z):.1e} |")
            if abs(x - y) > TOLERANCE[i] * max(abs(x), 0.1):
                failed.append(f"{method}, {which} update, {label}")
        if i:  # theirs: mean of two micro-batches' means
            print(
                f"| {method}, {which} update, clipped (theirs: mean over responses of means) | {a['clipped'][i]:.3f} | {b['clipped'][i]:.3f} | | |"
            )
        far, near = apart(a, b, i + 1), apart(b, c, i + 1)
        print(f"| {method}, weights then, over the way moved | | | {far[0]:.1e} | {near[0]:.1e} |")
        print(f"| {method}, weights then, largest difference | | | {far[1]:.1e} | {near[1]:.1e} |", flush=True)
        if far[0] > 1e-3:
            failed.append(f"{method}, weights after the {which} update")
    return failed


def main() -> None:
    quiet()
    asked, rollout = frozen_rollout()
    print("| | TRL | ours | TRL to ours | ours to ours, other micro-batches |\n| --- | --- | --- | --- | --- |")
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, VOCAB)
        for method in METHODS:
            failed += compare(
                method,
                theirs(folder, asked, rollout, method),
                ours(folder, rollout, BUDGET, method),
                ours(folder, rollout, BUDGET // 7, method),
            )
    print(f"\n{machine()}.\n")
    if failed:
        raise SystemExit(f"not equal: {'; '.join(failed)}")


if __name__ == "__main__":
    main()

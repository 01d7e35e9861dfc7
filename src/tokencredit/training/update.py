"""Score a rollout, turn rewards into token advantages, and take the optimisation steps.

Micro-batches are fixed once per rollout and used by the score pass and by the update alike, so that the ratio is
exactly 1 at the first update: the same rows meet the same kernels in the same shapes. Rows that cannot receive a
gradient (advantage 0) are batched apart and only scored; their tokens stay in the denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tokencredit.credit import (
    OBJECTIVES,
    Signals,
    group_advantage,
    probed_kinds,
    token_advantages,
    token_mean,
    touches_equal_groups,
)
from tokencredit.model.policy import Policy
from tokencredit.study.config import Training
from tokencredit.study.methods import Method
from tokencredit.training.rollout import Rollout
from tokencredit.training.stop import timed


class NotFinite(RuntimeError):
    """A loss or gradient norm is not finite."""


@dataclass(frozen=True)
class Minibatch:
    """Rows of one optimisation step: micro-batches that learn, and micro-batches that are only scored."""

    learning: list[list[int]]
    idle: list[list[int]]
    rows: list[int]


@dataclass
class Batch:
    """A scored rollout, ready for its updates. All [N, T]; padding holds 0."""

    rollout: Rollout
    mask: Tensor
    loss_mask: Tensor
    old: Tensor  # log-probabilities of the rollout policy
    advantage: Tensor  # per token, credited
    group_advantage: Tensor  # [N] float64
    minibatches: list[Minibatch]
    metrics: dict[str, float] = field(default_factory=dict)


def microbatches(lengths: Sequence[int], rows: Sequence[int], budget: int) -> list[list[int]]:
    """Rows in batches of at most `budget` padded tokens (one row at least), longest first.

    >>> microbatches([5, 3, 4, 1], [0, 1, 2, 3], 10)
    [[0, 2], [1, 3]]
    """
    batches: list[list[int]] = []
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def plan(rollout: Rollout, learns: Tensor, training: Training) -> list[Minibatch]:
    """Split the prompts into `updates` minibatches, and each into micro-batches. learns [N] bool."""
    lengths = [len(p) + len(r) for p, r in zip(rollout.prompts, rollout.responses, strict=True)]
    per = training.prompts // training.updates * training.group
    out = []
    for start in range(0, len(lengths), per):
        rows = list(range(start, start + per))
        active = [r for r in rows if bool(learns[r])]
        idle = [r for r in rows if not bool(learns[r])]
        budget = training.microbatch_tokens
        out.append(Minibatch(microbatches(lengths, active, budget), microbatches(lengths, idle, budget), rows))
    return out


def score(policy: Policy, rollout: Rollout, batches: Sequence[Sequence[int]], mask: Tensor) -> tuple[Tensor, ...]:
    """(log-probability, entropy, margin), each [N, T] in the policy's precision, 0 at padding; no gradient."""
    out = tuple(torch.zeros(mask.shape, dtype=policy.precision) for _ in range(3))
    with torch.no_grad():
        for rows in batches:
            s = policy.score([rollout.prompts[r] for r in rows], [rollout.responses[r] for r in rows], "score")
            index = torch.tensor(rows)
            for table, flat in zip(out, (s.logprob, s.entropy, s.margin), strict=True):
                table[index] = unflatten(flat.cpu(), mask[index])
    return out


def unflatten(flat: Tensor, mask: Tensor) -> Tensor:
    """[M] in row order to [B, T] with 0 at padding."""
    table = flat.new_zeros(mask.shape)
    table[mask] = flat
    return table


def probe(
    policy: Policy, rollout: Rollout, kinds: Sequence[str], prompts: dict[tuple[str, str], tuple[int, ...]], budget: int
) -> Tensor:
    """Log-probabilities [K, N, T] of the sampled tokens under the perturbed prompts; NaN where a problem lacks a kind.

    `prompts` maps (problem id, kind) to the perturbed prompt's ids. Same weights, same response prefix,
    teacher-forced, no generation; the K prompts of all responses are batched together by length.
    """
    mask = rollout.mask
    out = torch.full((len(kinds), *mask.shape), torch.nan, dtype=policy.precision)
    group = len(rollout.responses) // len(rollout.problems)
    jobs = [
        (k, row, ids)
        for k, kind in enumerate(kinds)
        for row in range(len(rollout.responses))
        if (ids := prompts.get((rollout.problems[row // group]["problem_id"], kind))) is not None
    ]
    lengths = [len(ids) + len(rollout.responses[row]) for _, row, ids in jobs]
    with torch.no_grad():
        for batch in microbatches(lengths, range(len(jobs)), budget):
            chosen = [jobs[j] for j in batch]
            s = policy.score([ids for _, _, ids in chosen], [rollout.responses[row] for _, row, _ in chosen], "probe")
            ks, rows = (torch.tensor([c[i] for c in chosen]) for i in (0, 1))
            out[ks, rows] = unflatten(s.logprob.cpu(), mask[rows])
    return out


def prepare(
    policy: Policy,
    rollout: Rollout,
    method: Method,
    training: Training,
    step: int,
    perturbed_prompts: dict[tuple[str, str], tuple[int, ...]],
    clock: dict[str, float],
) -> Batch:
    """Score the rollout, probe it where the method wants, and compute token advantages.

    `step` is the optimisation step (1-based) of the first update. Advantages see every response, dropped or not.
    """
    mask = rollout.mask
    kept = torch.ones(len(mask), dtype=torch.bool)
    if training.truncated == "drop":
        kept = torch.tensor([f == "stop" for f in rollout.finish])
    advantage = group_advantage(rollout.rewards, rollout.groups, method.advantage)
    learns = kept & ((advantage != 0) | touches_equal_groups(method, step))
    minibatches = plan(rollout, learns, training)
    with timed(clock, "score"):
        every = [b for m in minibatches for b in (*m.learning, *m.idle)]
        old, entropy, margin = score(policy, rollout, every, mask)
    kinds = probed_kinds(method, step)
    perturbed = None
    if kinds:
        with timed(clock, "probe"):
            perturbed = probe(policy, rollout, kinds, perturbed_prompts, training.microbatch_tokens)
    signals = Signals(mask, rollout.groups, old, margin, entropy, perturbed, step, rollout.row_seeds)
    advantage, tokens, stats = token_advantages(method, rollout.rewards, signals)
    metrics = {**rollout_metrics(rollout, mask, entropy, margin, old), **stats}
    loss_mask = mask & kept[:, None]
    return Batch(rollout, mask, loss_mask, old, tokens.to(old.dtype), advantage, minibatches, metrics)


def rollout_metrics(rollout: Rollout, mask: Tensor, entropy: Tensor, margin: Tensor, old: Tensor) -> dict[str, float]:
    """What the rollout says of the policy before its updates."""
    rewards = rollout.rewards.view(len(rollout.problems), -1)
    lengths = mask.sum(-1).double()
    sampled = torch.tensor([p for row in rollout.sampler_logprobs for p in row], dtype=torch.float64)
    return {
        "reward_mean": rewards.mean().item(),
        "equal_groups": (rewards == rewards[:, :1]).all(-1).double().mean().item(),
        "entropy": entropy[mask].double().mean().item(),
        "margin_mean": margin[mask].double().mean().item(),
        "margin_below_0.2": (margin[mask] <= 0.2).double().mean().item(),
        "margin_above_0.8": (margin[mask] >= 0.8).double().mean().item(),
        "length_mean": lengths.mean().item(),
        "truncated": sum(f == "length" for f in rollout.finish) / len(rollout.finish),
        "sampler_mismatch": (old[mask].double() - sampled).abs().mean().item(),
    }


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    minibatch: Minibatch,
    method: Method,
    max_grad_norm: float,
) -> dict[str, float]:
    """One optimisation step on one minibatch. Raises NotFinite before any weight changes.

    A minibatch without a learning row still counts as a step: its gradient is exactly 0.
    """
    objective = OBJECTIVES[method.objective.kind]
    device = policy.device
    tokens = int(batch.loss_mask[minibatch.rows].sum())
    loss_sum, ratio_max, kl = 0.0, 1.0, 0.0
    counts: dict[str, int] = {}
    for rows in minibatch.learning:
        index = torch.tensor(rows)
        mask = batch.mask[index]
        s = policy.score([batch.rollout.prompts[r] for r in rows], [batch.rollout.responses[r] for r in rows], "update")
        old, advantage = (table[index][mask].to(device) for table in (batch.old, batch.advantage))
        losses, events = objective(s.logprob, old, advantage, method.objective)
        keep = batch.loss_mask[index][mask].to(device)
        loss = token_mean(losses, keep, tokens)
        loss.backward()
        loss_sum += loss.item()
        for name, event in events.items():
            counts[name] = counts.get(name, 0) + int((event & keep).sum())
        log_ratio = (s.logprob.detach() - old)[keep]
        if len(log_ratio):
            ratio_max = max(ratio_max, log_ratio.max().exp().item())
            kl += (log_ratio.exp() - 1 - log_ratio).sum().item()
    for parameter in policy.parameters():
        if parameter.grad is None:  # no row learned, or none reached it
            parameter.grad = torch.zeros_like(parameter)
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm).item()
    if not (torch.isfinite(torch.tensor(loss_sum)) and torch.isfinite(torch.tensor(norm))):
        raise NotFinite(f"loss {loss_sum}, gradient norm {norm}")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {
        "loss": loss_sum,
        "grad_norm": norm,
        "ratio_max": ratio_max,
        "kl_to_rollout": kl / max(1, tokens),
        "learning_rows": sum(map(len, minibatch.learning)) / len(minibatch.rows),
        **{name: count / max(1, tokens) for name, count in counts.items()},
    }

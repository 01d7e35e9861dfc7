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
    Signals,
    group_advantage,
    reduce,
    selected_tokens,
    token_advantages,
    token_shares,
    touches_equal_groups,
    update_losses,
)
from tokencredit.model.policy import Policy
from tokencredit.study.config import Training
from tokencredit.study.methods import Method
from tokencredit.training.diagnostics import credit_metrics, rollout_metrics, sampled_logprobs
from tokencredit.training.probes import Sources, gather, microbatches, unflatten
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
    shares: Tensor  # [N, 1] what a row's tokens count in its step's loss
    old: Tensor  # log-probabilities of the rollout policy
    advantage: Tensor  # per token, credited
    group_advantage: Tensor  # [N] float64
    minibatches: list[Minibatch]
    signals: Signals
    correction: Tensor | None = None  # what each token's loss is multiplied by; see sampler_weights
    metrics: dict[str, float] = field(default_factory=dict)


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


def score(
    policy: Policy, rollout: Rollout, batches: Sequence[Sequence[int]], mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probability, entropy, margin), each [N, T] in the policy's precision, 0 at padding; no gradient."""
    out = [torch.zeros(mask.shape, dtype=policy.precision) for _ in range(3)]
    with torch.no_grad():
        for rows in batches:
            s = policy.score([rollout.prompts[r] for r in rows], [rollout.responses[r] for r in rows], "score")
            index = torch.tensor(rows)
            for table, flat in zip(out, (s.logprob, s.entropy, s.margin), strict=True):
                table[index] = unflatten(flat.cpu(), mask[index])
    return out[0], out[1], out[2]


def prepare(
    policy: Policy,
    rollout: Rollout,
    method: Method,
    training: Training,
    step: int,
    sources: Sources,
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
        scores = score(policy, rollout, [b for m in minibatches for b in (*m.learning, *m.idle)], mask)
    signals = gather(policy, rollout, method, training.microbatch_tokens, step, scores, advantage, sources, clock)
    advantage, tokens, stats = token_advantages(method, rollout.rewards, signals)
    selected, more = selected_tokens(method, signals)
    loss_mask = selected & kept[:, None]
    shares = torch.zeros(len(mask), 1, dtype=torch.float64)
    for minibatch in minibatches:
        shares[minibatch.rows] = token_shares(loss_mask[minibatch.rows], method.reduction, training.max_tokens)
    metrics = {
        **rollout_metrics(rollout, signals),
        **credit_metrics(tokens, loss_mask, signals),
        **stats,
        **more,
        **sources.notes,
    }
    old, correction = signals.logprob, None
    if training.sampler_correction == "truncated":
        correction, capped = sampler_weights(old, sampled_logprobs(rollout), mask, training.sampler_cap)
        metrics |= {"sampler_capped": capped, "sampler_weight_mean": correction[mask].double().mean().item()}
    return Batch(
        rollout,
        mask,
        loss_mask,
        shares,
        old,
        tokens.to(old.dtype),
        advantage,
        minibatches,
        signals,
        correction,
        metrics,
    )


def sampler_weights(old: Tensor, sampled: Tensor, mask: Tensor, cap: float) -> tuple[Tensor, float]:
    """(min(p / q, cap) per token, 1 at padding, [N, T] in old's precision; share of tokens at the cap).

    old, sampled [N, T]: log p of the trainer before the update, log q of the engine that drew the tokens.
    """
    ratio = torch.where(mask, (old.double() - sampled).exp(), 1.0)
    return ratio.clamp(max=cap).to(old.dtype), (ratio[mask] > cap).double().mean().item()


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
    tokens = int(batch.loss_mask[minibatch.rows].sum())
    seen = Seen()
    for rows in minibatch.learning:
        index = torch.tensor(rows)
        mask = batch.mask[index].to(policy.device)
        old, advantage, keep, shares = (
            table[index].to(policy.device) for table in (batch.old, batch.advantage, batch.loss_mask, batch.shares)
        )
        s = policy.score([batch.rollout.prompts[r] for r in rows], [batch.rollout.responses[r] for r in rows], "update")
        new = unflatten(s.logprob, mask)
        losses, events = update_losses(method, new, old, advantage, mask)
        if batch.correction is not None:
            losses = losses * batch.correction[index].to(policy.device)
        loss = reduce(losses, keep, shares)
        loss.backward()
        seen.add(loss, events, (new.detach() - old)[keep], keep)
    for parameter in policy.parameters():
        if parameter.grad is None:  # no row learned, or none reached it
            parameter.grad = torch.zeros_like(parameter)
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm).item()
    if not (torch.isfinite(torch.tensor(seen.loss)) and torch.isfinite(torch.tensor(norm))):
        raise NotFinite(f"loss {seen.loss}, gradient norm {norm}")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {
        "loss": seen.loss,
        "grad_norm": norm,
        "ratio_max": seen.ratio_max,
        "kl_to_rollout": seen.kl / max(1, tokens),
        "learning_rows": sum(map(len, minibatch.learning)) / len(minibatch.rows),
        **{name: count / max(1, tokens) for name, count in seen.counts.items()},
    }


@dataclass
class Seen:
    """What the micro-batches of a step add up to."""

    loss: float = 0.0
    ratio_max: float = 1.0
    kl: float = 0.0  # sum over tokens of r - 1 - log r
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Tensor, events: dict[str, Tensor], log_ratio: Tensor, keep: Tensor) -> None:
        self.loss += loss.item()
        for name, event in events.items():
            self.counts[name] = self.counts.get(name, 0) + int((event & keep).sum())
        if len(log_ratio):
            self.ratio_max = max(self.ratio_max, log_ratio.max().exp().item())
            self.kl += (log_ratio.exp() - 1 - log_ratio).sum().item()

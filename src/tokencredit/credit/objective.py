"""Policy objectives on token advantages, and the one reduction all of them share. Losses are minimised.

r = exp(new - old) per token; A the token advantage.
token_clip (SCAPO eq. 4 and 10): max(-r A, -clip(r, 1 - low, 1 + high) A); where A < 0 at most -dual A (dual clip).
sequence_clip (GSPO, arXiv 2507.18071): the same on s = exp(mean_t(new - old)), without dual clip, in its token form
    sg(s) pi/sg(pi): s in value, and each token its own gradient, so that credits by token can stand on it.
soft_gate (SAPO, arXiv 2511.20347): -A f(r), f = (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from tokencredit.credit.signals import masked_mean
from tokencredit.study.methods import SequenceClip, SoftGate, TokenClip

LOG_RATIO_BOUND = 20.0  # exp(20): beyond it the ratio says nothing more and float32 would overflow later
LOG_SEQUENCE_BOUND = 10.0  # GSPO's upper bound of log s

Events = dict[str, Tensor]


def bounded_ratio(new: Tensor, old: Tensor) -> Tensor:
    """exp(new - old), its logarithm held within +-20."""
    return (new - old).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def token_clip(new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, settings: TokenClip) -> tuple[Tensor, Events]:
    """Token losses and clip events. new, old, advantage, mask: [N, T]; the gradient flows through `new`.

    Events are boolean [N, T]: clipped_high, clipped_low, dual_clipped (the gradient is 0 there).
    """
    loss, events = _clipped(bounded_ratio(new, old), advantage, settings.low, settings.high)
    if settings.dual is not None:
        ceiling = -settings.dual * advantage
        events["dual_clipped"] = (advantage < 0) & (loss > ceiling)
        loss = torch.where(advantage < 0, torch.minimum(loss, ceiling), loss)
    return loss, events


def sequence_clip(
    new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, settings: SequenceClip
) -> tuple[Tensor, Events]:
    """GSPO's losses, spread over a response's tokens; arguments and events as in token_clip."""
    log_s = masked_mean(new.detach() - old, mask).clamp(max=LOG_SEQUENCE_BOUND)
    ratio = log_s.exp() * (new - new.detach()).exp()
    return _clipped(ratio, advantage, settings.low, settings.high)


def soft_gate(new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, settings: SoftGate) -> tuple[Tensor, Events]:
    """SAPO's losses. `gated`: tokens whose gradient the gate has cut by more than half."""
    ratio = bounded_ratio(new, old)
    tau = torch.full_like(ratio, settings.negative).masked_fill(advantage > 0, settings.positive)
    gate = torch.sigmoid(tau * (ratio - 1))
    return -advantage * gate * 4 / tau, {"gated": (4 * gate * (1 - gate) < 0.5).detach() & (advantage != 0)}


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Events]:
    plain = -ratio * advantage
    clipped = -ratio.clamp(1 - low, 1 + high) * advantage
    binds = clipped > plain
    return torch.maximum(plain, clipped), {
        "clipped_high": binds & (advantage > 0),
        "clipped_low": binds & (advantage < 0),
    }


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, Events]]] = {
    "token_clip": token_clip,
    "sequence_clip": sequence_clip,
    "soft_gate": soft_gate,
}

Reduction = Literal["token_mean", "sequence_mean", "constant"]


def token_shares(mask: Tensor, reduction: Reduction, limit: int) -> Tensor:
    """What each response's tokens count in the loss of ONE optimiser step: [N, 1] from its loss mask [N, T].

    loss = sum over tokens of share x token loss, so micro-batches only add up, however the step is split; a step
    without a token gives 0. token_mean: 1 / tokens of the step. sequence_mean: 1 / (N T_i). constant (Dr. GRPO):
    1 / (N limit), limit the response limit.

    >>> token_shares(torch.tensor([[True, True], [True, False]]), "sequence_mean", 2).flatten().tolist()
    [0.25, 0.5]
    """
    count = mask.sum(-1, keepdim=True).double()
    if reduction == "token_mean":
        return torch.full_like(count, 1 / max(1.0, count.sum().item()))
    if reduction == "sequence_mean":
        return 1 / (len(mask) * count.clamp(min=1))
    return torch.full_like(count, 1 / (len(mask) * limit))


def reduce(loss: Tensor, mask: Tensor, shares: Tensor) -> Tensor:
    """A micro-batch's part of the step's loss: loss, mask [B, T], its rows' shares [B, 1]."""
    return (torch.where(mask, loss, 0.0) * shares.to(loss.dtype)).sum()

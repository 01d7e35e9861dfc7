"""Policy objectives on token advantages, and the one reduction all of them share.

token_clip: l = max(-r A, -clip(r, 1 - low, 1 + high) A); where A < 0 also at most -dual A (dual clip).
Minimised; SCAPO eq. 4 and 10 with its clip 0.20 / 0.28 and dual clip 10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.study.methods import TokenClip

LOG_RATIO_BOUND = 20.0  # exp(20): beyond it the ratio says nothing more and float32 would overflow later


def token_clip(new: Tensor, old: Tensor, advantage: Tensor, settings: TokenClip) -> tuple[Tensor, dict[str, Tensor]]:
    """Token losses and clip events. new, old, advantage: [N, T] (or flat [M]); the gradient flows through `new`.

    Events are boolean tensors of the same shape: clipped_high, clipped_low, dual_clipped (gradient is 0 there).
    """
    ratio = (new - old).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    plain = -ratio * advantage
    clipped = -ratio.clamp(1 - settings.low, 1 + settings.high) * advantage
    loss = torch.maximum(plain, clipped)
    binds = clipped > plain
    events = {"clipped_high": binds & (advantage > 0), "clipped_low": binds & (advantage < 0)}
    if settings.dual is not None:
        ceiling = -settings.dual * advantage
        events["dual_clipped"] = (advantage < 0) & (loss > ceiling)
        loss = torch.where(advantage < 0, torch.minimum(loss, ceiling), loss)
    return loss, events


def token_mean(loss: Tensor, mask: Tensor, denominator: int) -> Tensor:
    """Numerator over one micro-batch's loss mask, divided by the count over the WHOLE optimiser step.

    Micro-batches add up to the step's token-mean however the step is split; an all-masked one gives 0.
    """
    return torch.where(mask, loss, 0.0).sum() / max(1, denominator)

"""FIPO, future-KL credit (arXiv 2603.19835): A_{i,t} f_t in the update, f without gradient.

D_t = new - old; M_t = [r_t <= safety]; F_t = M_t D_t + gamma F_{t+1}, gamma = 2^(-1 / half_life), from the end back;
f = clip(exp F, low, high); where A < 0 and r > safety, f is held in [unsafe_low, 1] (its text says 1, its 7B setting
needed .8: both are settings). On a rollout's first update new = old, so f = 1: nothing differs from GRPO there.
Not mean-preserving. `old` must be the trainer's own log-probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit.objective import bounded_ratio
from tokencredit.study.methods import FutureCredit


def future_kl(new: Tensor, old: Tensor, mask: Tensor, settings: FutureCredit) -> Tensor:
    """F [N, T]; 0 at padding.

    F_t = sum_{s >= t} gamma^(s - t) M_s D_s: one product with a triangular matrix in blocks, not T small steps.
    """
    safe = mask & (bounded_ratio(new, old) <= settings.safety)
    step = torch.where(safe, new - old, 0.0)
    gamma = 2 ** (-1 / settings.half_life)
    out = torch.empty_like(step)
    carry = step.new_zeros(len(step), 1)
    block = 256
    for start in reversed(range(0, step.shape[1], block)):
        part = step[:, start : start + block]
        lag = torch.arange(part.shape[1], device=step.device, dtype=step.dtype)
        power = lag[:, None] - lag[None]
        decay = torch.where(power >= 0, gamma**power, 0.0)  # [s, t]
        here = part @ decay + carry * gamma ** (part.shape[1] - lag)
        out[:, start : start + block] = here
        carry = here[:, :1]
    return torch.where(mask, out, 0.0)


def future_factor(
    new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, settings: FutureCredit
) -> tuple[Tensor, dict[str, Tensor]]:
    """f [N, T] and events. new, old, advantage, mask [N, T]; nothing here carries a gradient."""
    new = new.detach()
    factor = future_kl(new, old, mask, settings).exp().clamp(settings.low, settings.high)
    unsafe = (advantage < 0) & (bounded_ratio(new, old) > settings.safety)
    factor = torch.where(unsafe, factor.clamp(settings.unsafe_low, 1.0), factor)
    return factor, {"future_raised": (factor > 1) & mask, "future_unsafe": unsafe & mask}

"""Group advantage: A_i = (R_i - mean R) / (std R + eps) over the responses to one prompt.

DeepSeekMath (GRPO), as SCAPO eq. 2 uses it. Ours: ddof 1, eps 1e-6. At G = 8 a std of ddof 1 is 7 % larger than
one of ddof 0, i.e. a 7 % smaller step. scale "none" gives R - mean (Dr. GRPO).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit.signals import group_index
from tokencredit.study.methods import Advantage


def group_advantage(rewards: Tensor, groups: Tensor, settings: Advantage) -> Tensor:
    """Rewards [N] and prompt uids [N] to advantages [N], float64. A group of equal rewards gets exactly 0.

    >>> [round(a, 12) for a in group_advantage(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), Advantage()).tolist()]
    [0.707105781188, -0.707105781188]
    """
    index, number = group_index(groups)
    rewards = rewards.double()
    zeros = rewards.new_zeros(number)
    count = zeros.index_add(0, index, torch.ones_like(rewards))
    mean = zeros.index_add(0, index, rewards) / count
    centred = rewards - mean[index]
    if settings.scale == "none":
        return centred
    freedom = (count - settings.ddof).clamp(min=1)
    std = (zeros.index_add(0, index, centred.square()) / freedom).sqrt()
    return centred / (std[index] + settings.eps)

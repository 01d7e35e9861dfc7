"""Oracle credit: what each position really did, by Monte Carlo. OURS: a reference, not a method.

effect_t = V_{t+1} - V_t, V_t the success rate of continuations from before token t (as in VinePPO, arXiv 2410.01679).
"effect": A~_t = T_i effect_t / (std + eps); its mean over the response is (R_i - V_0) / (std + eps), near A_i.
"weight": A~_t = A_i w_t, w_t = |effect_t| / mean|effect|, capped towards 1 as in MCPO's proportional form.
A group of equal rewards, and a response that was not measured, keeps its group advantage.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit.margin import spread
from tokencredit.credit.signals import Signals, group_index
from tokencredit.study.methods import MarginCredit, OracleCredit


def oracle_credit(advantage: Tensor, signals: Signals, settings: OracleCredit) -> tuple[Tensor, dict[str, float]]:
    """Token advantages [N, T] from signals.effect [N, T] and signals.rewards [N], and what the step logs."""
    if signals.effect is None or signals.rewards is None:
        raise ValueError("oracle credit needs Monte Carlo effects and rewards")
    mask, effect = signals.mask, signals.effect.double()
    known = torch.where(mask, effect.isfinite(), True).all(-1, keepdim=True)
    effect = torch.where(mask & known, effect, 0.0)
    if settings.form == "weight":
        form = MarginCredit(kind="margin", form="proportional", cap=settings.cap)
        changed = advantage * spread(effect.abs(), mask, form)
    else:
        changed = effect * mask.sum(-1, keepdim=True) * inverse_scale(advantage, signals)[:, None]
    use = known & (advantage.abs().amax(-1, keepdim=True) > 0)
    total = effect.abs().sum(-1)[known.squeeze(-1)]
    return torch.where(use & mask, changed, advantage), {
        "measured": known.double().mean().item(),
        "total_effect": total.mean().item() if len(total) else 0.0,
    }


def inverse_scale(advantage: Tensor, signals: Signals) -> Tensor:
    """A_i / (R_i - mean R) [N], i.e. 1 / (std + eps) of the group; 0 where the group's rewards are equal."""
    assert signals.rewards is not None
    index, number = group_index(signals.groups)
    rewards = signals.rewards.double()
    zeros = rewards.new_zeros(number)
    mean = zeros.index_add(0, index, rewards) / zeros.index_add(0, index, torch.ones_like(rewards))
    centred = rewards - mean[index]
    first = torch.where(signals.mask, advantage, 0.0)[:, 0]
    return torch.where(centred != 0, first / torch.where(centred != 0, centred, 1.0), 0.0)

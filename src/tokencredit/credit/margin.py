"""MCPO, margin-guided token credit (arXiv 2611.14015): A_{i,t} = A_i w_t with mean_t w_t = 1.

From the abstract: the top-2 margin M = p1 - p2 is mapped to a score with two fixed thresholds, and each solution's
advantage is spread over its tokens so that its mean stays. OUR RECONSTRUCTION (only the abstract is known):
    s = clip((high - M) / (high - low), 0, 1),   w = (1 + strength s) / mean_t(1 + strength s)
with low .2, high .8, strength 1; the additive and proportional forms, the one-sided use, entropy in the margin's place
(s rises from `low` to `high` nats) and the controls are ours too.
M comes from the score pass that every method makes: no extra forward, no batch statistics, no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit.signals import Signals, masked_mean, shuffle_within
from tokencredit.study.methods import MarginCredit


def hesitation(margin: Tensor, low: float, high: float) -> Tensor:
    """Score s in [0, 1]: 1 at margins up to `low`, 0 from `high` on, linear between. Any shape.

    >>> hesitation(torch.tensor([0.1, 0.55, 0.9], dtype=torch.float64), 0.2, 0.8).tolist()
    [1.0, 0.41666666666666663, 0.0]
    """
    return ((high - margin) / (high - low)).clamp(0, 1)


def spread(score: Tensor, mask: Tensor, settings: MarginCredit) -> Tensor:
    """Weights [N, T] of mean 1 over each response's valid tokens; 0 at padding. score, mask [N, T]."""
    beta = settings.strength
    if settings.form == "ratio":
        raw = 1 + beta * score
        weight = raw / masked_mean(raw, mask)
    elif settings.form == "additive":
        weight = 1 + beta * (score - masked_mean(score, mask))
    else:
        mean = masked_mean(score, mask)
        share = torch.where(mean > 0, score / mean.clamp(min=torch.finfo(score.dtype).tiny), 1.0)
        # Shrink towards 1 just enough that no weight passes the cap: a plain clip would lose the mean.
        peak = torch.where(mask, share, 0.0).amax(-1, keepdim=True)
        keep = torch.where(peak > settings.cap, (settings.cap - 1) / (peak - 1).clamp(min=1e-12), 1.0)
        weight = 1 + keep * (share - 1)
    return torch.where(mask, weight, 0.0)


def weights(signals: Signals, settings: MarginCredit) -> tuple[Tensor, Tensor]:
    """(weights [N, T], score [N, T]) in float64, control applied."""
    if settings.signal == "margin":
        score = hesitation(signals.margin.double(), settings.low, settings.high)
    else:
        score = 1 - hesitation(signals.entropy.double(), settings.low, settings.high)
    if settings.control == "inverted":
        score = 1 - score
    elif settings.control == "uniform":
        score = torch.zeros_like(score)
    weight = spread(score, signals.mask, settings)
    if settings.control == "shuffled":
        weight = shuffle_within(weight, signals.mask, signals.row_seeds)
    return weight, score


def margin_credit(advantage: Tensor, signals: Signals, settings: MarginCredit) -> tuple[Tensor, dict[str, float]]:
    """Token advantages [N, T] times w, and what the step logs. advantage [N, T] float64."""
    weight, score = weights(signals, settings)
    mask = signals.mask
    stats = {"hesitant_share": ((score > 0) & mask).sum().item() / max(1, mask.sum().item())}
    if settings.where != "all":
        chosen = advantage > 0 if settings.where == "positive" else advantage < 0
        weight = torch.where(chosen, weight, 1.0)
    return advantage * weight, stats

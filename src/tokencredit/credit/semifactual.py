"""SCAPO, semifactual credit (arXiv 2609.40360): A~_{i,t} = A_i + lambda min(u_{i,t}, 0).

Drift of one token under perturbed prompt k (eq. 1, 6): d_k = 2 tanh(|log p0 - log pk| / 2) in [0, 2].
Stability (eq. 7): u = z( mean_k z(-d_k) ), z over ALL valid response tokens of the prompt's group.
lambda = strength for optimisation steps 1..steps, then 0 and no probes (eq. 11). Population std and eps 1e-6 in z
are our choice (the paper names neither); signs other than "negative" and the shuffled control are its ablations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit.signals import Signals, group_zscore, shuffle_within
from tokencredit.study.methods import SemifactualCredit


def drift(logprob: Tensor, perturbed: Tensor) -> Tensor:
    """d = 2 tanh(|log p0 - log pk| / 2) = |p0 - pk| / ((p0 + pk) / 2), in [0, 2]. Shapes broadcast.

    >>> round(drift(torch.tensor(0.5).log(), torch.tensor(0.25).log()).item(), 6)
    0.666667
    """
    return 2 * torch.tanh((logprob - perturbed).abs() / 2)


def stability(drifts: Tensor, mask: Tensor, groups: Tensor, eps: float) -> Tensor:
    """u [N, T] from drifts [K, N, T]; 0 at padding.

    A kind that a problem lacks is NaN for its whole group; it adds 0 to the mean over kinds, and the outer z undoes
    the smaller scale: the group's u is that of the kinds it has.
    """
    each = torch.stack([group_zscore(-d, mask, groups, eps) for d in drifts.nan_to_num(0.0)])
    return group_zscore(each.mean(0), mask, groups, eps)


def active(settings: SemifactualCredit, step: int) -> bool:
    """Whether optimisation step `step` (1-based) is within the augmentation phase."""
    return step <= settings.steps and settings.strength > 0


def semifactual_credit(
    advantage: Tensor, signals: Signals, settings: SemifactualCredit
) -> tuple[Tensor, dict[str, float]]:
    """Token advantages [N, T] plus the correction, and what the step logs. advantage [N, T] float64."""
    if not active(settings, signals.step):
        return advantage, {}
    if signals.perturbed is None:
        raise ValueError("semifactual credit needs the probes' log-probabilities")
    mask = signals.mask
    drifts = drift(signals.logprob.double(), signals.perturbed.double())
    u = stability(drifts, mask, signals.groups, settings.eps)
    if settings.control == "shuffled":
        u = shuffle_within(u, mask, signals.row_seeds)
    if settings.signs == "negative":
        correction = u.clamp(max=0)
    elif settings.signs == "positive":
        correction = u.clamp(min=0)
    else:
        correction = u
    changed = advantage + settings.strength * correction
    return torch.where(mask, changed, advantage), drift_stats(drifts, correction, mask)


def drift_stats(drifts: Tensor, correction: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean and percentiles of the mean drift over valid tokens, and the corrected share. drifts [K, N, T]."""
    valid = drifts.nanmean(0)[mask]
    valid = valid[~valid.isnan()]
    if not len(valid):
        return {}
    quantiles = torch.quantile(valid, valid.new_tensor([0.5, 0.9, 0.99]))
    return {
        "drift_mean": valid.mean().item(),
        "drift_p50": quantiles[0].item(),
        "drift_p90": quantiles[1].item(),
        "drift_p99": quantiles[2].item(),
        "corrected_share": (correction[mask] != 0).double().mean().item(),
        "correction_mean": correction[mask].mean().item(),
    }

"""What a rollout and a method's credit look like, logged at every rollout. Deterministic values only."""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit import Signals
from tokencredit.credit.semifactual import drift
from tokencredit.credit.signals import masked_mean
from tokencredit.training.rollout import Rollout


def rollout_metrics(rollout: Rollout, signals: Signals) -> dict[str, float]:
    """What the rollout says of the policy before its updates."""
    mask = signals.mask
    correct = rollout.correct.view(len(rollout.problems), -1)
    gap = torch.where(mask, signals.logprob.double() - sampled_logprobs(rollout), 0.0)
    margin = signals.margin[mask]
    return {
        "reward_mean": rollout.correct.mean().item(),
        "equal_groups": (correct == correct[:, :1]).all(-1).double().mean().item(),
        "entropy": signals.entropy[mask].double().mean().item(),
        "margin_mean": margin.double().mean().item(),
        "margin_below_0.2": (margin <= 0.2).double().mean().item(),
        "margin_above_0.8": (margin >= 0.8).double().mean().item(),
        "length_mean": mask.sum(-1).double().mean().item(),
        "truncated": sum(f == "length" for f in rollout.finish) / len(rollout.finish),
        "sampler_mismatch": gap[mask].abs().mean().item(),
        "sampler_mismatch_sequence": gap.sum(-1).abs().mean().item(),
        **({} if rollout.penalty is None else {"penalty_mean": rollout.penalty.mean().item()}),
    }


def sampled_logprobs(rollout: Rollout) -> Tensor:
    """The engine's own log-probabilities of the sampled tokens, [N, T] float64, 0 at padding."""
    out = torch.zeros(rollout.mask.shape, dtype=torch.float64)
    for row, logprobs in enumerate(rollout.sampler_logprobs):
        out[row, : len(logprobs)] = torch.tensor(logprobs, dtype=torch.float64)
    return out


def credit_metrics(tokens: Tensor, loss_mask: Tensor, signals: Signals) -> dict[str, float]:
    """How unevenly |A~| is spread over each response's tokens; tokens, loss_mask [N, T].

    Weights w_t = |A~_t| / mean_t |A~_t| over responses with any credit; 0 outside the loss. Not logged where all
    are equal by construction. hesitation_instability: Pearson's r of 1 - margin and mean drift over valid tokens.
    """
    size = torch.where(loss_mask, tokens.abs(), 0.0)
    some = size.amax(-1) > 0
    out: dict[str, float] = {}
    if bool(some.any()):
        weight = (size / masked_mean(size, signals.mask).clamp(min=torch.finfo(size.dtype).tiny))[some]
        valid = signals.mask[some]
        if bool((torch.where(valid, weight, 1.0) - 1).abs().max() > 1e-12):
            count = valid.sum(-1)
            out = {
                "credit/weight_max": weight.max().item(),
                "credit/effective_token_ratio": (count / weight.square().sum(-1)).mean().item(),
                "credit/gini": gini(weight, valid).mean().item(),
            }
    if signals.perturbed is not None:
        d = drift(signals.logprob, signals.perturbed).nanmean(0)
        both = torch.stack([1 - signals.margin[signals.mask], d[signals.mask]]).double()
        both = both[:, both[1].isfinite()]
        if both.shape[1] > 1 and bool((both.std(-1) > 0).all()):
            out["credit/hesitation_instability"] = torch.corrcoef(both)[0, 1].item()
    return out


def gini(weight: Tensor, mask: Tensor) -> Tensor:
    """Gini coefficient of each row's valid weights [N, T] -> [N]: 0 all equal, (T - 1) / T all on one token.

    G = sum_j (2 j - T - 1) w_(j) / (T sum w), w_(1) <= ... <= w_(T).

    >>> gini(torch.tensor([[0.0, 0.0, 4.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)).item()
    0.75
    """
    count = mask.sum(-1)
    ordered = torch.where(mask, weight, torch.inf).sort(-1).values
    place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    ordered = torch.where(place[None] <= count[:, None], ordered, 0.0)
    total = ordered.sum(-1)
    top = ((2 * place[None] - count[:, None] - 1) * ordered).sum(-1)
    return torch.where(total > 0, top / (count * total).clamp(min=torch.finfo(weight.dtype).tiny), 0.0)

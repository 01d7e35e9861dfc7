"""Which candidates d-filtered decoding masks at one step (SCAPO, arXiv 2609.40360, section 3).

    d(v) = (1/K) sum_k 2 tanh(|log p0(v) - log pk(v)| / 2)      for every v of the vocabulary, d in [0, 2]

p0: next-token probabilities under the clean prompt, pk: under perturbation k, after the same response so far. The
drift mask is the longest prefix of the candidates, by falling d (ties by token id), whose summed p0 is at most the
cap; ids that are never masked (EOS) are skipped over. The random mask is OUR CONTROL: it takes the candidates by
chance and masks each one that the budget still holds.
Shapes: n rows, W = K + 1 prompts (the clean one first), V candidates. Masses are summed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEVELS = 256  # of drift, in [0, 2]


def candidate_drift(logprobs: Tensor) -> Tensor:
    """[n, W, V] log-probabilities -> mean drift [n, V]. -inf on one side is a drift of 2, on both sides of 0."""
    gap = (logprobs[:, 1:] - logprobs[:, :1]).abs_()  # -inf - -inf is NaN
    return gap.nan_to_num_(0.0, torch.inf).mul_(0.5).tanh_().mean(1).mul_(2.0)


def drift_mask(probabilities: Tensor, drift: Tensor, cap: float, keep: Tensor) -> Tensor:
    """probabilities and drift [n, V], 0 <= cap < 1 of a row's total, keep [V]: never masked -> mask [n, V] bool.

    At least 1 - cap of the mass stays. At cap 0 only candidates of probability 0 are masked. Candidates are first
    summed by level of drift; only the one level in which the prefix ends is sorted, which for a vocabulary of 150,000
    takes a tenth of sorting all of it.
    """
    mass = probabilities.double().masked_fill(keep, 0.0)
    limit = cap * probabilities.sum(-1, keepdim=True, dtype=torch.float64)
    level = drift.mul(LEVELS / 2).long()  # 0 .. LEVELS, rises with drift
    down_to = mass.new_zeros(len(mass), LEVELS + 2).scatter_add_(1, level, mass).flip(1).cumsum(1).flip(1)
    last = (down_to > limit).sum(-1, keepdim=True) - 1  # the prefix ends in this level; -1: it takes everything
    mask = level > last
    rows, ids = (level == last).nonzero(as_tuple=True)  # by row, then token id
    place = _place_in_row(rows, len(mass))
    width = int(place.max()) + 1 if len(place) else 0
    within = drift.new_full((len(mass), width), -1.0).index_put_((rows, place), drift[rows, ids])
    weight = mass.new_zeros(len(mass), width).index_put_((rows, place), mass[rows, ids])
    order = within.argsort(dim=-1, descending=True, stable=True)
    prefix = down_to.gather(1, last + 1) + weight.gather(1, order).cumsum(1) <= limit
    mask[rows, ids] = torch.zeros_like(prefix).scatter_(1, order, prefix)[rows, place]
    return mask.logical_and_(~keep)


def _place_in_row(rows: Tensor, count: int) -> Tensor:
    """Rising row numbers -> 0, 1, 2, ... within each row."""
    sizes = torch.bincount(rows, minlength=count)
    return torch.arange(len(rows), device=rows.device) - (sizes.cumsum(0) - sizes)[rows]


def random_mask(probabilities: Tensor, budget: Tensor, keys: Tensor, keep: Tensor) -> Tensor:
    """Candidates by rising key, each masked if what is left of the budget holds it: -> mask [n, V] bool.

    budget [n] float64: a mass, as masked_mass gives it; keys [n, V]: random numbers. A candidate that does not fit is
    passed over rather than ending the row: with a prefix rule, chance would meet a likely candidate early, stop there,
    and mask far less mass than the budget.
    """
    order = keys.argsort(dim=-1, stable=True)
    mass = probabilities.double().gather(1, order)
    open_, left = ~keep[order], budget[:, None]
    mask = torch.zeros_like(open_)
    while True:
        open_ &= mass <= left  # what does not fit now never will
        if not bool(open_.any()):
            return torch.zeros_like(mask).scatter_(1, order, mask)
        fits = open_ & ((mass * open_).cumsum(-1) <= left)
        mask |= fits
        open_ &= ~fits
        left = left - (mass * fits).sum(-1, keepdim=True)


def masked_mass(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Probability that the mask takes, [n] float64. Sums of float32 numbers in float64: equal sets, equal sums."""
    return (probabilities * mask).sum(-1, dtype=torch.float64)


def entropies(logprobs: Tensor, probabilities: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy [n] of the clean distribution, and of the rest renormalised: log Z - (1/Z) sum p log p over the rest
    with Z its mass; nats, float64. logprobs, probabilities, mask [n, V]."""
    each = (probabilities * logprobs).masked_fill_(probabilities == 0, 0.0)
    left = ~mask
    rest, kept = ((x * left).sum(-1, dtype=torch.float64) for x in (probabilities, each))
    # rounding may leave a lone candidate at -1e-17
    return -each.sum(-1, dtype=torch.float64), (rest.log() - kept / rest).clamp_(min=0.0)


def tempered_entropies(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Entropy [n, J] of softmax(logits / T) for each of J temperatures; logits [n, V] finite; nats, float64."""
    columns = []
    for temperature in temperatures:
        tempered = logits / temperature
        columns.append(-(tempered.softmax(-1) * tempered.log_softmax(-1)).sum(-1).double())
    return torch.stack(columns, 1) if columns else logits.new_zeros(len(logits), 0, dtype=torch.float64)

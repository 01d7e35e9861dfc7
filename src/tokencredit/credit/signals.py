"""What a method may read of one rollout, and the small masked statistics every credit uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Response tokens [start, stop) and by how much the answer's log-probability drops without them (nats)."""

    start: int
    stop: int
    drop: float


@dataclass(frozen=True)
class Signals:
    """Signals of the rollout policy (weights before the update) at the sampled tokens. N responses, T positions.

    Everything is detached; padding may hold anything finite, only `mask` says what counts.
    """

    mask: Tensor  # [N, T] bool: valid response tokens, EOS included
    groups: Tensor  # [N] long: prompt uid
    logprob: Tensor  # [N, T] log-probability of the sampled token at the training temperature
    margin: Tensor  # [N, T] top-2 margin p1 - p2
    entropy: Tensor  # [N, T] nats
    perturbed: Tensor | None = None  # [K, N, T] log-probability of the same tokens under perturbed prompts, or NaN
    step: int = 1  # optimisation step (1-based) of the first update that uses this rollout
    row_seeds: Sequence[int] = field(default_factory=tuple)  # [N] for the shuffled controls
    spans: Sequence[Sequence[Span]] | None = None  # [N] counterfactual spans of each response's reasoning
    answer_start: Sequence[int | None] | None = None  # [N] first token of the boxed answer; None: no box
    rewards: Tensor | None = None  # [N]
    effect: Tensor | None = None  # [N, T] V_{t+1} - V_t, Monte Carlo; NaN where a response was not measured


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over valid tokens of each response: [N, T] -> [N, 1]; 0 where a response has none."""
    count = mask.sum(-1, keepdim=True)
    return torch.where(mask, values, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)


def group_index(groups: Tensor) -> tuple[Tensor, int]:
    """Prompt uids [N] as consecutive indices [N], and their number."""
    unique, index = torch.unique(groups, return_inverse=True)
    return index, len(unique)


def group_zscore(values: Tensor, mask: Tensor, groups: Tensor, eps: float) -> Tensor:
    """z(v) = (v - mean v) / (std v + eps), population std, over ALL valid tokens of a prompt's group (SCAPO eq. 7).

    values, mask [N, T]; groups [N]. Invalid positions are 0 in the result.
    """
    index, number = group_index(groups)

    def per_group(rows: Tensor) -> Tensor:
        return rows.new_zeros(number).index_add_(0, index, rows)

    count = per_group(mask.sum(-1).to(values.dtype)).clamp(min=1)
    mean = per_group(torch.where(mask, values, 0.0).sum(-1)) / count
    centred = torch.where(mask, values - mean[index, None], 0.0)
    std = (per_group(centred.square().sum(-1)) / count).sqrt()
    return centred / (std[index, None] + eps)


def shuffle_within(values: Tensor, mask: Tensor, row_seeds: Sequence[int]) -> Tensor:
    """Permute each response's valid entries by its own seed: a control that keeps the values and loses the place.

    values, mask [N, T]; a response's permutation does not depend on its padding or its neighbours.
    """
    if len(row_seeds) != len(values):
        raise ValueError(f"shuffled control: {len(row_seeds)} row seeds for {len(values)} responses")
    out = values.clone()
    for row, seed in enumerate(row_seeds):
        valid = mask[row].nonzero().squeeze(-1)
        generator = torch.Generator().manual_seed(seed)
        out[row, valid] = values[row, valid[torch.randperm(len(valid), generator=generator).to(valid.device)]]
    return out

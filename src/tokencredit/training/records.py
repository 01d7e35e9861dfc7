"""Rows that a rollout leaves behind: its kept responses, their tokens, and which token categories get the credit."""

from __future__ import annotations

from typing import Any

import torch

from tokencredit.credit.semifactual import drift
from tokencredit.model.prompts import Prompter
from tokencredit.problems.categories import CATEGORIES, Categoriser
from tokencredit.training.update import Batch

CATEGORISED = 128  # responses of a rollout whose tokens are put into categories

Row = dict[str, Any]


def kept_rows(batch: Batch, groups: int) -> list[int]:
    """Rows of the first `groups` groups, and of the first group with both rewards where none of those has."""
    size = len(batch.mask) // len(batch.rollout.problems)
    correct = batch.rollout.correct.view(-1, size)
    mixed = torch.nonzero(correct.amin(-1) != correct.amax(-1)).flatten().tolist()
    kept = list(range(min(groups, len(correct))))
    if kept and mixed and not set(mixed) & set(kept):
        kept.append(mixed[0])
    return [row for g in kept for row in range(g * size, (g + 1) * size)]


def rollout_rows(batch: Batch, groups: int, step: int) -> list[Row]:
    """Rows of the `rollouts` table: every response of the first `groups` groups."""
    rollout = batch.rollout
    size = len(batch.mask) // len(rollout.problems)
    return [
        {
            "step": step,
            "problem_id": rollout.problems[row // size]["problem_id"],
            "group": row // size,
            "sample": row % size,
            "reward": rollout.rewards[row].item(),
            "advantage": batch.group_advantage[row].item(),
            "token_count": len(rollout.responses[row]),
            "finish_reason": rollout.finish[row],
            "text": rollout.texts[row],
        }
        for row in range(min(groups * size, len(rollout.responses)))
    ]


def token_rows(batch: Batch, groups: int, step: int, prompter: Prompter, categoriser: Categoriser) -> list[Row]:
    """Rows of the `tokens` table: every token of the kept responses, with its signals and its credit."""
    rollout, s = batch.rollout, batch.signals
    size = len(batch.mask) // len(rollout.problems)
    moved = drift(s.logprob, s.perturbed).nanmean(0) if s.perturbed is not None else None
    credit = torch.where(batch.loss_mask, batch.advantage, 0.0)
    out = []
    for row in kept_rows(batch, groups):
        tokens = rollout.responses[row]
        same = {
            "step": step,
            "problem_id": rollout.problems[row // size]["problem_id"],
            "group": row // size,
            "sample": row % size,
            "reward": rollout.rewards[row].item(),
            "group_advantage": batch.group_advantage[row].item(),
        }
        for t, (token, piece) in enumerate(zip(tokens, prompter.pieces(tokens), strict=True)):
            out.append(
                {
                    **same,
                    "position": t,
                    "token_id": token,
                    "piece": piece,
                    "category": categoriser.of(piece),
                    "credit": credit[row, t].item(),
                    "logprob": s.logprob[row, t].item(),
                    "margin": s.margin[row, t].item(),
                    "entropy": s.entropy[row, t].item(),
                    "drift": None if moved is None or moved[row, t].isnan() else moved[row, t].item(),
                }
            )
    return out


def category_metrics(batch: Batch, prompter: Prompter, categoriser: Categoriser) -> dict[str, float]:
    """A category's share of |A~| over its share of the tokens in the loss; of the first 128 responses.

    1 for every category where credit is even; a category without a token is left out. Empty without any credit.
    """
    mass = dict.fromkeys(CATEGORIES, 0.0)
    count = dict.fromkeys(CATEGORIES, 0)
    size = torch.where(batch.loss_mask, batch.advantage.abs(), 0.0)[:CATEGORISED].tolist()
    inside = batch.loss_mask[:CATEGORISED].tolist()
    for row, tokens in enumerate(batch.rollout.responses[:CATEGORISED]):
        for t, category in enumerate(map(categoriser.of, prompter.pieces(tokens))):
            if inside[row][t]:
                mass[category] += size[row][t]
                count[category] += 1
    total, tokens_in = sum(mass.values()), sum(count.values())
    if not total:
        return {}
    return {
        f"credit_share/{c.replace(' ', '_').replace('-', '_')}": (mass[c] / total) / (n / tokens_in)
        for c, n in count.items()
        if n
    }

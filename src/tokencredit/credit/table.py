"""The table of methods' parts: add a credit or an objective here (and its settings in study/methods.py).

Credits act at three moments: on the token advantages of a scored rollout (CREDITS, in the study's order), on which
tokens stay in the loss (SELECTIONS), and inside an update, where the new log-probabilities are known (FACTORS).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tokencredit.credit.advantage import group_advantage
from tokencredit.credit.entropy import select
from tokencredit.credit.future import future_factor
from tokencredit.credit.margin import margin_credit
from tokencredit.credit.objective import OBJECTIVES, Events
from tokencredit.credit.oracle import oracle_credit
from tokencredit.credit.semifactual import active, semifactual_credit
from tokencredit.credit.signals import Signals
from tokencredit.credit.spans import span_credit
from tokencredit.study.methods import Method

Credit = Callable[[Tensor, Signals, Any], tuple[Tensor, dict[str, float]]]
Selection = Callable[[Signals, Any], tuple[Tensor, dict[str, float]]]
Factor = Callable[[Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, Events]]

CREDITS: dict[str, Credit] = {
    "margin": margin_credit,
    "semifactual": semifactual_credit,
    "spans": span_credit,
    "oracle": oracle_credit,
}
SELECTIONS: dict[str, Selection] = {"entropy": select}
FACTORS: dict[str, Factor] = {"future_kl": future_factor}


def probed_kinds(method: Method, step: int) -> tuple[str, ...]:
    """Perturbation kinds whose log-probabilities this method wants at optimisation step `step` (1-based)."""
    kinds = [k for c in method.credit if c.kind == "semifactual" and active(c, step) for k in c.kinds]
    return tuple(dict.fromkeys(kinds))


def token_advantages(method: Method, rewards: Tensor, signals: Signals) -> tuple[Tensor, Tensor, dict[str, float]]:
    """(group advantages [N], token advantages [N, T], statistics) in float64: the rollout's credits in order."""
    advantage = group_advantage(rewards, signals.groups, method.advantage)
    tokens, stats = apply_credits(method, advantage, dataclasses.replace(signals, rewards=rewards))
    return advantage, tokens, stats


def apply_credits(method: Method, advantage: Tensor, signals: Signals) -> tuple[Tensor, dict[str, float]]:
    """(token advantages [N, T], statistics): the rollout's credits in order on advantages [N]."""
    tokens = advantage[:, None].expand(signals.mask.shape)
    stats: dict[str, float] = {}
    for settings in method.credit:
        if settings.kind in CREDITS:
            tokens, more = CREDITS[settings.kind](tokens, signals, settings)
            stats |= {f"{settings.kind}/{name}": value for name, value in more.items()}
    return tokens, stats


def selected_tokens(method: Method, signals: Signals) -> tuple[Tensor, dict[str, float]]:
    """(tokens that stay in the loss [N, T], statistics): all valid ones unless the method selects."""
    chosen = signals.mask
    stats: dict[str, float] = {}
    for settings in method.credit:
        if settings.kind in SELECTIONS:
            picked, more = SELECTIONS[settings.kind](signals, settings)
            chosen = chosen & picked
            stats |= {f"{settings.kind}/{name}": value for name, value in more.items()}
    return chosen, stats


def update_advantages(
    method: Method, new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, Events]:
    """Token advantages [N, T] as an update with these log-probabilities uses them, and events."""
    events: Events = {}
    for settings in method.credit:
        if settings.kind in FACTORS:
            factor, more = FACTORS[settings.kind](new, old, advantage, mask, settings)
            advantage, events = advantage * factor, events | more
    return advantage, events


def update_losses(method: Method, new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Events]:
    """Token losses [N, T] of whole responses and their events; the gradient flows through `new` [N, T]."""
    advantage, events = update_advantages(method, new, old, advantage, mask)
    losses, more = OBJECTIVES[method.objective.kind](new, old, advantage, mask, method.objective)
    return losses, events | more


def touches_equal_groups(method: Method, step: int) -> bool:
    """Whether tokens of a group with equal rewards (advantage 0) can still get a gradient at this step."""
    return bool(probed_kinds(method, step))

"""The table of methods' parts: add a credit or an objective here (and its settings in study/methods.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tokencredit.credit.advantage import group_advantage
from tokencredit.credit.margin import margin_credit
from tokencredit.credit.objective import token_clip
from tokencredit.credit.semifactual import active, semifactual_credit
from tokencredit.credit.signals import Signals
from tokencredit.study.methods import Method

Credit = Callable[[Tensor, Signals, Any], tuple[Tensor, dict[str, float]]]

CREDITS: dict[str, Credit] = {"margin": margin_credit, "semifactual": semifactual_credit}
OBJECTIVES = {"token_clip": token_clip}


def probed_kinds(method: Method, step: int) -> tuple[str, ...]:
    """Perturbation kinds whose log-probabilities this method wants at optimisation step `step` (1-based)."""
    kinds = [k for c in method.credit if c.kind == "semifactual" and active(c, step) for k in c.kinds]
    return tuple(dict.fromkeys(kinds))


def token_advantages(method: Method, rewards: Tensor, signals: Signals) -> tuple[Tensor, Tensor, dict[str, float]]:
    """(group advantages [N], token advantages [N, T], statistics) in float64: the credits in order."""
    advantage = group_advantage(rewards, signals.groups, method.advantage)
    tokens = advantage[:, None].expand(signals.mask.shape)
    stats: dict[str, float] = {}
    for settings in method.credit:
        tokens, more = CREDITS[settings.kind](tokens, signals, settings)
        stats |= {f"{settings.kind}/{name}": value for name, value in more.items()}
    return advantage, tokens, stats


def touches_equal_groups(method: Method, step: int) -> bool:
    """Whether tokens of a group with equal rewards (advantage 0) can still get a gradient at this step."""
    return bool(probed_kinds(method, step))

"""The science: group advantage, token credits, policy objectives, the table of methods. Pure tensor mathematics."""

from tokencredit.credit.advantage import group_advantage
from tokencredit.credit.objective import OBJECTIVES, reduce, token_shares
from tokencredit.credit.signals import Signals, Span
from tokencredit.credit.table import (
    CREDITS,
    FACTORS,
    SELECTIONS,
    probed_kinds,
    selected_tokens,
    token_advantages,
    touches_equal_groups,
    update_advantages,
    update_losses,
)

__all__ = [
    "CREDITS",
    "FACTORS",
    "OBJECTIVES",
    "SELECTIONS",
    "Signals",
    "Span",
    "group_advantage",
    "probed_kinds",
    "reduce",
    "selected_tokens",
    "token_advantages",
    "token_shares",
    "touches_equal_groups",
    "update_advantages",
    "update_losses",
]

"""The science: group advantage, token credits, policy objectives, the table of methods. Pure tensor mathematics."""

from tokencredit.credit.advantage import group_advantage
from tokencredit.credit.objective import token_clip, token_mean
from tokencredit.credit.signals import Signals
from tokencredit.credit.table import CREDITS, OBJECTIVES, probed_kinds, token_advantages, touches_equal_groups

__all__ = [
    "CREDITS",
    "OBJECTIVES",
    "Signals",
    "group_advantage",
    "probed_kinds",
    "token_advantages",
    "token_clip",
    "token_mean",
    "touches_equal_groups",
]

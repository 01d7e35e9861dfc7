"""80/20 (arXiv 2506.01939): only tokens whose entropy is at or above the rollout's (1 - share) quantile learn.

The loss is the mean over the SELECTED tokens of the optimiser step. The threshold depends on the batch (MCPO's does
not): ours is taken once over the rollout's valid tokens, so that it does not depend on micro-batches.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tokencredit.credit.signals import Signals
from tokencredit.study.methods import EntropyCredit


def select(signals: Signals, settings: EntropyCredit) -> tuple[Tensor, dict[str, float]]:
    """(selected [N, T] bool, what the step logs). Linear interpolation between order statistics."""
    valid = signals.entropy[signals.mask].double()
    if not len(valid):
        return signals.mask, {}
    # numpy's quantile has no limit on the number of elements (torch's stops at 2^24)
    threshold = float(np.quantile(valid.cpu().numpy(), 1 - settings.share))
    selected = signals.mask & (signals.entropy.double() >= threshold)
    share = selected.sum().item() / len(valid)
    return selected, {"threshold": threshold, "selected_share": share}

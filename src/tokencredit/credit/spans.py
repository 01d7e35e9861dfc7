"""CF-GRPO, credit by counterfactual spans (arXiv 2602.09331): A_{i,t} = A_i w_t with mean_t w_t = 1.

drop_j = log p(answer) - log p(answer | span j masked), by the rollout policy.
I_t = floor + sum_j [t in j] drop_j / len_j, rescaled to [.5, 1] over the reasoning;
w_t = low + (high - low) I_t in the reasoning, `answer` (1.5) in the answer; then w is rescaled to mean 1.
OUR RECONSTRUCTION: (low, high) = (.5, 4) as bounds of w before the last step; a response whose I_t is constant gets
w = 1 (nothing was found out); so does one without a boxed answer. Where spans are found: training/spans.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit.signals import Signals, Span
from tokencredit.study.methods import SpanCredit


def importance(spans: list[Span], reasoning: int, settings: SpanCredit) -> Tensor | None:
    """I [reasoning] in [.5, 1], float64; None where it is constant."""
    raw = torch.full((reasoning,), settings.floor, dtype=torch.float64)
    for span in spans:
        raw[span.start : span.stop] += span.drop / (span.stop - span.start)
    if not reasoning or not bool(raw.isfinite().all()) or bool(raw.max() == raw.min()):
        return None
    return 0.5 + 0.5 * (raw - raw.min()) / (raw.max() - raw.min())


def span_weights(signals: Signals, settings: SpanCredit) -> Tensor:
    """w [N, T] of mean 1 over each response's valid tokens; 0 at padding."""
    if signals.spans is None or signals.answer_start is None:
        raise ValueError("counterfactual credit needs the spans' drops and where the answers start")
    weight = signals.mask.double()
    for row, (spans, answer) in enumerate(zip(signals.spans, signals.answer_start, strict=True)):
        if answer is None:
            continue
        found = importance(list(spans), answer, settings)
        if found is None:
            continue
        length = int(signals.mask[row].sum())
        w = torch.full((length,), settings.answer, dtype=torch.float64)
        w[:answer] = settings.low + (settings.high - settings.low) * found
        weight[row, :length] = (w / w.mean()).to(weight.device)
    return weight


def span_credit(advantage: Tensor, signals: Signals, settings: SpanCredit) -> tuple[Tensor, dict[str, float]]:
    """Token advantages [N, T] times w, and what the step logs."""
    weight = span_weights(signals, settings)
    assert signals.spans is not None and signals.answer_start is not None
    drops = [span.drop for row in signals.spans for span in row]
    return advantage * weight, {
        "spans": len(drops) / max(1, len(signals.spans)),
        "drop_mean": sum(drops) / max(1, len(drops)),
        "boxed": sum(a is not None for a in signals.answer_start) / max(1, len(signals.answer_start)),
    }

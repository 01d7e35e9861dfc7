"""From logits to tokens: inverse-CDF sampling with noise that belongs to the sample, not to the batch.

token = first index at which the cumulated probability passes u. In two levels where the vocabulary is large: the
probabilities are first summed in runs of 128 tokens, the run is found among the sums, the token inside its run; so
the whole vocabulary is only summed, not cumulated (torch.multinomial takes 10 to 20 times as long on a CPU). Sums
are cumulated in float64.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokencredit.sampling.types import Params

RUN = 128
_BLOCK_ELEMENTS = {"cpu": 1 << 20}  # logits worked on at once, so that they stay in the cache
_BLOCK_ELEMENTS_ELSEWHERE = 1 << 27
_NUCLEUS = 64  # candidates looked at first for top-p; widened while a row's mass falls short


def noise(seed: int, count: int) -> np.ndarray:
    """`count` uniform float64 numbers in [0, 1) of the counter-based stream keyed by `seed`.

    Number t is a function of (seed, t): a longer stream begins with the shorter one.
    """
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def draw(logits: Tensor, uniform: Tensor, params: Params) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    logits [n, vocab] float32, overwritten; uniform [n] float64 -> tokens [n] int64, log-probabilities [n] float32
    (at the temperature, or at 1 where greedy; before top-p).
    """
    limit = _BLOCK_ELEMENTS.get(logits.device.type, _BLOCK_ELEMENTS_ELSEWHERE)
    rows = max(1, limit // logits.shape[1])
    if params.suppress:
        logits[:, list(params.suppress)] = -torch.inf
    parts = [_draw(part, u, params) for part, u in zip(logits.split(rows), uniform.split(rows), strict=True)]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([t for t, _ in parts]), torch.cat([p for _, p in parts])


def _draw(logits: Tensor, uniform: Tensor, params: Params) -> tuple[Tensor, Tensor]:
    if params.temperature not in (0.0, 1.0):
        logits = logits.div_(params.temperature)
    probabilities = logits.softmax(-1)
    if params.temperature == 0:
        tokens = logits.argmax(-1)
    elif params.top_p < 1:
        tokens = _nucleus(probabilities, uniform, params.top_p)
    else:
        tokens = _inverse_cdf(probabilities, uniform)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def _inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """[n, vocab], [n] -> [n]."""
    vocab = probabilities.shape[1]
    if vocab <= 4 * RUN:
        cumulated = probabilities.cumsum(-1, dtype=torch.float64)
        return _first_above(cumulated, uniform[:, None] * cumulated[:, -1:])[:, 0]
    whole = vocab // RUN * RUN
    sums = probabilities[:, :whole].unflatten(1, (-1, RUN)).sum(-1)
    if whole < vocab:
        sums = torch.cat([sums, probabilities[:, whole:].sum(-1, keepdim=True)], 1)
    cumulated = sums.double().cumsum(-1)
    target = uniform[:, None] * cumulated[:, -1:]
    run = _first_above(cumulated, target)
    before = cumulated.gather(1, (run - 1).clamp(min=0)).masked_fill_(run == 0, 0.0)
    columns = run * RUN + torch.arange(RUN, device=run.device)
    inside = probabilities.gather(1, columns.clamp(max=vocab - 1)).masked_fill_(columns >= vocab, 0.0)
    offset = _first_above(inside.double().cumsum(-1), target - before)
    return (run * RUN + offset)[:, 0]


def _first_above(cumulated: Tensor, target: Tensor) -> Tensor:
    """First column whose value passes `target` [n, 1]; never one that adds nothing, whatever the rounding."""
    last = (cumulated < cumulated[:, -1:]).sum(-1, keepdim=True)
    return torch.minimum((cumulated <= target).sum(-1, keepdim=True), last)


def _nucleus(probabilities: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """Inverse CDF over the smallest set of most probable tokens whose mass reaches top_p."""
    width, vocab = _NUCLEUS, probabilities.shape[1]
    while True:
        top, tokens = probabilities.topk(min(width, vocab), -1)
        cumulated = top.double().cumsum(-1)
        if width >= vocab or bool((cumulated[:, -1] >= top_p).all()):
            break
        width *= 8
    kept = top.double().masked_fill_(cumulated - top.double() >= top_p, 0.0).cumsum(-1)
    place = _first_above(kept, uniform[:, None] * kept[:, -1:])
    return tokens.gather(1, place)[:, 0]

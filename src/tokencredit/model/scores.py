"""Scores without logits: log-probability, entropy and top-2 margin of each response position, in tiles.

One response of 16,384 tokens over 151,936 words would be 9.9 GB of float32 logits. Here the hidden states meet the
head a tile of positions at a time; a tile's logits are dropped at once and rebuilt in backward where the head is
trained. Peak memory is a few tiles, whatever tokens x vocabulary is. Entropy and margin are detached by-products of
the same pass: MCPO never runs the model an extra time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Flat over M response positions. Only `logprob` carries a gradient."""

    logprob: Tensor  # [M] float32: log-probability of the target at the temperature
    entropy: Tensor  # [M] nats; [0] where no statistics were asked for
    margin: Tensor  # [M] p1 - p2, in [0, 1]; likewise


def token_scores(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    tile: int = 2**23,
    statistics: bool = True,
) -> Scores:
    """Scores of `targets` under softmax((hidden head^T + bias) / temperature).

    hidden [M, D] at the positions that predict, head [V, D], targets [M] long, bias [V]. `tile` bounds the logits
    held at once (elements). float32 logsumexp (float64 for float64 inputs). Gradients flow to hidden, head and bias.
    Without `statistics` (entropy and margin) a pass is a third cheaper on a CPU, and its logprob the same to the bit.
    """
    rows = max(1, tile // head.shape[0])
    return Scores(*_TokenScores.apply(hidden, head, bias, targets, temperature, rows, statistics))


class _Tiles:
    """Logits / temperature, [m, V] in at least float32, one tile after another in the same memory.

    A fresh buffer of that size comes from the system page by page each time: on a CPU that costs as much as half the
    matrix product.
    """

    def __init__(self, hidden: Tensor, head: Tensor, bias: Tensor | None, temperature: float, rows: int):
        self.hidden, self.head, self.bias, self.temperature = hidden, head, bias, temperature
        exact = hidden.dtype in (torch.float32, torch.float64) and hidden.dtype == head.dtype
        # under autocast a product is in lower precision than its arguments: it cannot be written into their kind
        exact = exact and not torch.is_autocast_enabled(hidden.device.type)
        size = (min(rows, len(hidden)), head.shape[0])
        self.memory = hidden.new_empty(size) if exact else None

    def __getitem__(self, at: slice) -> Tensor:
        hidden = self.hidden[at]
        if self.memory is None:
            logits = torch.nn.functional.linear(hidden, self.head, self.bias)
            logits = logits if logits.dtype == torch.float64 else logits.float()
        else:
            logits = torch.mm(hidden, self.head.t(), out=self.memory[: len(hidden)])
            if self.bias is not None:
                logits += self.bias
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        rows: int,
        statistics: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprob = hidden.new_empty(len(hidden), dtype=kind)
        entropy, margin = (hidden.new_empty(len(hidden) if statistics else 0, dtype=kind) for _ in range(2))
        trains_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        # With a frozen head, d logprob / d hidden is one vector per position: made here, nothing is rebuilt later.
        direct = ctx.needs_input_grad[0] and not trains_head
        slope = hidden.new_empty(hidden.shape) if direct else None
        lse = torch.empty_like(logprob) if trains_head else None
        tiles = _Tiles(hidden, head, bias, temperature, rows)
        memory = tiles.memory.new_empty(tiles.memory.shape) if tiles.memory is not None else None
        for start in range(0, len(hidden), rows):
            at = slice(start, start + rows)
            z = tiles[at]
            # Where the maximum stands costs as much as six maxima on a CPU, and only the margin wants to know.
            top, best = z.max(-1) if statistics else (z.amax(-1), None)
            z -= top[:, None]
            target = z.gather(-1, targets[at, None]).squeeze(-1)
            p = torch.exp(z, out=memory[: len(z)] if memory is not None else None)
            total = p.sum(-1)
            log_total = total.log()
            logprob[at] = target - log_total
            if slope is not None:
                mean_head = torch.mm(p.to(head.dtype), head) / total[:, None]
                slope[at] = (head[targets[at]] - mean_head) / temperature
            if lse is not None:
                lse[at] = top + log_total
            if best is not None:
                # z of a word of probability 0 may be -inf, and 0 * -inf is not 0. In place: z is not read again.
                expected = z.clamp_(min=-1e4).mul_(p).sum(-1) / total
                entropy[at] = (log_total - expected).clamp_(min=0)
                # The best word has p = 1 before the division; knock it out, and the largest left is the second.
                margin[at] = (1 - p.scatter_(-1, best[:, None], 0.0).amax(-1)) / total
        ctx.save_for_backward(slope, *((hidden, head, bias, targets, lse) if trains_head else ()))
        ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(entropy, margin)
        return logprob, entropy, margin

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        slope, *saved = ctx.saved_tensors
        if slope is not None:
            return grad[:, None].to(slope.dtype) * slope, None, None, None, None, None, None
        if not saved:
            return None, None, None, None, None, None, None
        hidden, head, bias, targets, lse = saved
        need_hidden, need_head, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_head = torch.zeros_like(head, dtype=grad.dtype) if need_head else None
        grad_bias = torch.zeros_like(bias, dtype=grad.dtype) if need_bias else None
        tiles = _Tiles(hidden, head, bias, ctx.temperature, ctx.rows)
        for start in range(0, len(hidden), ctx.rows):
            at = slice(start, start + ctx.rows)
            # d logprob / d z = onehot(target) - p, and d z = (hidden head^T + bias) / temperature.
            d = tiles[at].sub_(lse[at, None]).exp_()
            scale = grad[at] / ctx.temperature
            d *= -scale[:, None]
            d.scatter_add_(-1, targets[at, None], scale[:, None])
            if grad_hidden is not None:
                grad_hidden[at] = torch.mm(d.to(head.dtype), head)
            if grad_head is not None:
                grad_head.addmm_(d.t(), hidden[at].to(d.dtype))
            if grad_bias is not None:
                grad_bias += d.sum(0)
        return (
            grad_hidden,
            grad_head.to(head.dtype) if grad_head is not None else None,
            grad_bias.to(bias.dtype) if grad_bias is not None else None,
            None,
            None,
            None,
            None,
        )

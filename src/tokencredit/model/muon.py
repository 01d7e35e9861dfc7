"""Muon: momentum whose matrix is replaced by its nearest orthogonal one (Newton-Schulz, five iterations).

Same update as torch.optim.Muon with its default settings, which is the reference in the tests; here all
matrices of one shape are orthogonalised in one batched product and in float32: for the scratch model's many small
matrices that is several times faster on a CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPS = 1e-7


@dataclass(frozen=True)
class Fused:
    """A parameter that holds several matrices one below the other; each is orthogonalised on its own."""

    weight: Tensor  # [sum(rows), columns]
    rows: tuple[int, ...]


class Muon:
    """Nesterov momentum and decoupled weight decay around the orthogonalised update."""

    def __init__(self, parameters: Sequence[Fused], momentum: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.buffers = [torch.zeros_like(p.weight, requires_grad=False) for p in self.parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Apply the gradients in .grad at learning rate `lr`."""
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            gradient = parameter.weight.grad
            assert gradient is not None
            buffer.lerp_(gradient, 1 - self.momentum)
            update = gradient.lerp(buffer, self.momentum)
            rows = list(parameter.rows)
            for weight, part in zip(parameter.weight.split(rows), update.split(rows), strict=True):
                wide = part if part.shape[0] <= part.shape[1] else part.T
                by_shape[(wide.shape[0], wide.shape[1])].append((weight, wide))
        for group in by_shape.values():
            updates = orthogonalise(torch.stack([wide for _, wide in group]))
            for (weight, _), update in zip(group, updates, strict=True):
                height, width = weight.shape
                scale = max(1.0, height / width) ** 0.5
                weight.mul_(1 - lr * self.weight_decay)
                weight.add_(update if height <= width else update.T, alpha=-lr * scale)


def orthogonalise(matrices: Tensor) -> Tensor:
    """[n, rows, columns] with rows <= columns: each with its singular values moved to about 1."""
    a, b, c = _COEFFICIENTS
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPS)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x

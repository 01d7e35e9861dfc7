"""Did the weights arrive? After each hand-over a few tokens are sampled, and the model scores them too.

    token = mean_t |log q(y_t) - log p(y_t)|        sequence = mean_y |sum_t (log q(y_t) - log p(y_t))|

q: the engine's log-probability, p: the model's own forward pass. Engines that keep a copy of the weights can keep a
stale one without an error; then these numbers are not rounding any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokencredit.sampling.types import Completion, Engine, Params, Request
from tokencredit.sampling.weights import plain
from tokencredit.study.seeds import derive

LENGTHS = (5, 9, 12)  # of the probe's prompts, tokens
TOKENS = 8  # sampled after each


@dataclass(frozen=True)
class Gap:
    """|difference| of the engine's and the model's log-probabilities, in nats."""

    token: float  # mean over tokens
    token_max: float
    sequence: float  # mean over responses, of the summed difference

    def metrics(self) -> dict[str, float]:
        return {f"handover/{name}": value for name, value in vars(self).items()}


def probe(engine: Engine, model: Any, dtype: torch.dtype | None = None) -> Gap:
    """Sample from the engine, score with the model (transformers or peft), compare. dtype: the engine's precision."""
    vocab = plain(model).get_input_embeddings().weight.shape[0]
    prompts = [tuple((7 * i + 3 + n) % vocab for i in range(n)) for n in LENGTHS]
    requests = [Request(p, derive("handover", i)) for i, p in enumerate(prompts)]
    drawn = engine.generate(requests, Params(max_tokens=TOKENS))
    with evaluating(model, dtype):
        scored = [forced_logprobs(model, p, c.tokens) for p, c in zip(prompts, drawn, strict=True)]
    return compare(drawn, scored)


def compare(drawn: Sequence[Completion], scored: Sequence[Tensor]) -> Gap:
    """scored: per completion, the model's log-probabilities [T]."""
    differences = [torch.tensor(c.logprobs).double() - s for c, s in zip(drawn, scored, strict=True)]
    tokens = torch.cat(differences).abs()
    sequences = torch.stack([d.sum().abs() for d in differences])
    return Gap(tokens.mean().item(), tokens.max().item(), sequences.mean().item())


def forced_logprobs(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Log-probabilities [T] float64 of `tokens` after `prompt` by one forward pass without padding."""
    ids = torch.tensor([[*prompt, *tokens]], device=next(model.parameters()).device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()  # [T, vocab]
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()


@contextlib.contextmanager
def evaluating(model: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """No gradients, evaluation mode, at the engine's precision where it is the lower one; put back afterwards."""
    training, parameter = model.training, next(model.parameters())
    lower = dtype is not None and dtype != parameter.dtype and dtype != torch.float32
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(parameter.device.type, dtype=dtype, enabled=lower):
            yield
    finally:
        model.train(training)

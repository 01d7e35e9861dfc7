"""Rows that move in step: each response holds W rows, one per prompt, and every token goes to all of them.

Row r W + k holds response r under its prompt k. Two kinds, after the engines: on the fast engine's cache (distinct
prompts are run once, responses come and go), and on a transformers cache (a batch lives from its prompts to its
last response).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tokencredit.sampling.cache import Cache
from tokencredit.sampling.fast import (
    PREFILL_TOKENS,
    PREFILL_TOKENS_ELSEWHERE,
    REFILL_SHARE,
    FastEngine,
    _rows_that_fit,
)
from tokencredit.sampling.hf import TransformersEngine
from tokencredit.sampling.types import Engine, Unsupported
from tokencredit.sampling.weights import plain

Prompt = tuple[int, ...]


class Lanes(Protocol):
    """n live responses of W rows each."""

    width: int  # W
    vocab: int
    device: torch.device
    room: int  # responses it holds at once
    refill: int  # free places that are worth an admission; room: only when it is empty

    def admit(self, groups: Sequence[tuple[Prompt, ...]]) -> Tensor:
        """New responses n.. by their W prompts -> hidden state after each prompt [new W, ...]."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """The next token [n] of every live response -> hidden state there [n W, ...]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of hidden -> logits [rows, vocab] float32; the next call may overwrite them."""
        ...

    def leave(self, done: Sequence[int]) -> list[int]:
        """Take responses out -> for each place from 0 on, the place where its response stood before."""
        ...


@contextlib.contextmanager
def make_lanes(engine: Engine, groups: Sequence[tuple[Prompt, ...]], max_tokens: int) -> Iterator[Lanes]:
    """Lanes for responses to `groups` (equally many prompts each), in the state the engine needs for inference.

    Raises Unsupported for engines and models that neither kind of lanes can serve.
    """
    if isinstance(engine, FastEngine):
        yield FastLanes(engine, groups, max_tokens)
    elif isinstance(engine, TransformersEngine):
        with engine._inference():
            yield CacheLanes(engine, groups)
    else:
        raise Unsupported(f"filtered decoding: it needs an engine with a cache, {type(engine).__name__} shows none")


def vocabulary(engine: Engine) -> int:
    """Ids the engine's model knows. Raises Unsupported as make_lanes."""
    if isinstance(engine, FastEngine):
        return engine.decoder.architecture.vocab
    if isinstance(engine, TransformersEngine):
        return int(plain(engine.model).get_input_embeddings().weight.shape[0])
    raise Unsupported(f"filtered decoding: it needs an engine with a cache, {type(engine).__name__} shows none")


class FastLanes:
    """On the fast engine's decoder and cache."""

    def __init__(self, engine: FastEngine, groups: Sequence[tuple[Prompt, ...]], max_tokens: int) -> None:
        self.decoder, self.width = engine.decoder, len(groups[0])
        self.vocab, self.device = engine.decoder.architecture.vocab, engine.decoder.device
        distinct = {p for group in groups for p in group}
        widest = max(map(len, distinct))
        rows = min(engine.max_rows, _rows_that_fit(engine.decoder, widest + max_tokens))
        self.room = max(1, min(len(groups), rows // self.width))
        self.refill = max(1, int(REFILL_SHARE * self.room))
        rows = self.room * self.width
        self.cache = Cache(self.decoder, rows, max_tokens, min(len(distinct), rows), widest)

    def admit(self, groups: Sequence[tuple[Prompt, ...]]) -> Tensor:
        prompts = [p for group in groups for p in group]
        new = sorted({p for p in prompts if p not in self.cache.slots}, key=lambda p: (len(p), p))
        limit = PREFILL_TOKENS.get(self.device.type, PREFILL_TOKENS_ELSEWHERE)
        while new:
            size = next((n for n in range(1, len(new)) if (n + 1) * len(new[n]) > limit), len(new))
            self.cache.add_prompts(new[:size], *self.decoder.prefill(new[:size]))
            del new[:size]
        return self.cache.add_rows(prompts)

    def step(self, tokens: Tensor) -> Tensor:
        hidden = self.decoder.step(tokens.repeat_interleave(self.width), self.cache.view())
        self.cache.advance()
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def leave(self, done: Sequence[int]) -> list[int]:
        # the cache fills holes with the last rows, both in rising order: whole groups move as they are
        kept = list(range(self.cache.n // self.width))
        moves = self.cache.leave([r * self.width + k for r in done for k in range(self.width)])
        for hole, tail in zip(moves.holes[:: self.width], moves.tails[:: self.width], strict=True):
            kept[hole // self.width] = tail // self.width
        return kept[: self.cache.n // self.width]


class CacheLanes:
    """On a transformers cache, prompts left-padded; for what the fast decoder does not know."""

    def __init__(self, engine: TransformersEngine, groups: Sequence[tuple[Prompt, ...]]) -> None:
        if not engine.padded:
            raise Unsupported(
                f"filtered decoding: {type(plain(engine.model)).__name__} does not ignore padding, and the prompts of "
                "a problem differ in length"
            )
        self.engine, self.width = engine, len(groups[0])
        self.vocab, self.device = vocabulary(engine), engine.device
        self.room = self.refill = max(1, min(len(groups), engine.max_rows // self.width))
        self.mask = torch.zeros(0)  # [n W, all so far]
        self.past: Any = None

    def admit(self, groups: Sequence[tuple[Prompt, ...]]) -> Tensor:
        prompts = [p for group in groups for p in group]
        distinct = list(dict.fromkeys(prompts))
        width = max(map(len, distinct))
        padded = [[*([0] * (width - len(p))), *p] for p in distinct]
        seen = [[*([0] * (width - len(p))), *([1] * len(p))] for p in distinct]
        mask = torch.tensor(seen, device=self.device)
        logits, self.past = self.engine.forward(torch.tensor(padded, device=self.device), mask, None)
        if not hasattr(self.past, "reorder_cache"):
            raise Unsupported(f"filtered decoding: rows of a {type(self.past).__name__} cannot be moved")
        place = {p: i for i, p in enumerate(distinct)}
        rows = torch.tensor([place[p] for p in prompts], device=self.device)
        self.past.reorder_cache(rows)
        self.mask = mask[rows]
        return logits[rows]

    def step(self, tokens: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
        logits, self.past = self.engine.forward(tokens.repeat_interleave(self.width)[:, None], self.mask, self.past)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def leave(self, done: Sequence[int]) -> list[int]:
        gone = set(done)
        kept = [r for r in range(len(self.mask) // self.width) if r not in gone]
        rows = torch.tensor([r * self.width + k for r in kept for k in range(self.width)], device=self.device)
        if kept:
            self.past.reorder_cache(rows)
        self.mask = self.mask[rows.long()]
        return kept

"""The fast engine: continuous batching over a cache in which samples share their prompt.

Waiting requests are sorted by prompt; each distinct prompt is run once. A finished row leaves the batch at once
(the last row takes its place), and new requests come in when a quarter of the rows is free. Noise is drawn per
request from its seed, so where a row stands and beside whom does not matter (see Engine in types.py for the limits
of that).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokencredit.model.checkpoint import read_safetensors
from tokencredit.sampling.cache import Cache
from tokencredit.sampling.decoder import Architecture, Decoder
from tokencredit.sampling.draw import draw, noise
from tokencredit.sampling.types import Completion, Params, Request, Unsupported, check_requests
from tokencredit.sampling.weights import effective_weights, plain

MAX_ROWS = {"cpu": 512}
MAX_ROWS_ELSEWHERE = 1024
CPU_CACHE_BYTES = 2 << 30
GPU_CACHE_SHARE = 0.5  # of the memory free when generate() is called
PREFILL_TOKENS = {"cpu": 4096}
PREFILL_TOKENS_ELSEWHERE = 32768
LOGITS_AT_ONCE = 1 << 25  # rows x vocabulary
REFILL_SHARE = 0.25  # of the rows free before new requests come in


class FastEngine:
    """Engine for decoders of the Llama family (decoder.MODEL_TYPES)."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        max_rows: int | None = None,
    ) -> None:
        self.decoder = Decoder(architecture, device, dtype)
        self.decoder.load(weights)
        self.max_rows = max_rows or MAX_ROWS.get(device.type, MAX_ROWS_ELSEWHERE)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> FastEngine:
        """From config.json and safetensors (or the given weights), without importing transformers.

        dtype None: as the embedding is stored.
        """
        architecture = Architecture.from_config(json.loads((folder / "config.json").read_text()))
        weights = read_safetensors(folder) if weights is None else weights
        return cls(architecture, weights, device, dtype or _stored_dtype(weights))

    @classmethod
    def from_model(cls, model: Any, device: torch.device, dtype: torch.dtype | None = None) -> FastEngine:
        """From a live transformers or peft model; its logits and the engine's are compared on a short input.

        Raises Unsupported where they differ.
        """
        inner = plain(model)
        architecture = Architecture.from_config(inner.config.to_dict())
        weights = effective_weights(model)
        engine = cls(architecture, weights, device, dtype or _stored_dtype(weights))
        engine._compare(model)
        return engine

    def update(self, model: Any) -> None:
        """Take over the current weights of a transformers or peft model."""
        self.decoder.load(effective_weights(model))

    def sleep(self) -> None:
        """Nothing to give back: the cache lives within generate()."""

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        """One completion per request, in the requests' order."""
        if not requests:
            return []
        check_requests(requests, self.decoder.architecture.vocab)
        return _Run(self.decoder, requests, params, self.max_rows).finish()

    def _compare(self, model: Any) -> None:
        parameter = next(model.parameters())
        ids = (torch.arange(12) * 7 + 3) % self.decoder.architecture.vocab
        training = model.training
        model.eval()
        with torch.no_grad():
            theirs = model(input_ids=ids[None].to(parameter.device), use_cache=False).logits[0].float().cpu()
        model.train(training)
        ours = _teacher_forced(self.decoder, ids).cpu()
        theirs = theirs[2:]
        rough = self.decoder.dtype != torch.float32 or parameter.dtype != torch.float32
        limit = (0.1 if rough else 1e-3) * max(1.0, theirs.abs().max().item())
        worst = (ours - theirs).abs().max().item()
        if not worst <= limit:
            raise Unsupported(f"{type(plain(model)).__name__}: its logits differ from the decoder's by {worst:.2g}")


def _stored_dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    embed = weights.get("model.embed_tokens.weight")
    if embed is None:
        raise Unsupported("no weight model.embed_tokens.weight")
    return embed.dtype


def _teacher_forced(decoder: Decoder, ids: Tensor) -> Tensor:
    """Logits [len(ids) - 2, vocab] from the third position on: three tokens as a prompt, then single steps."""
    prompt = tuple(ids[:3].tolist())
    cache = Cache(decoder, 1, len(ids), 1, len(prompt))
    cache.add_prompts([prompt], *decoder.prefill([prompt]))
    rows = [decoder.logits(cache.add_rows([prompt])).clone()]
    for token in ids[3:].to(decoder.device):
        rows.append(decoder.logits(decoder.step(token[None], cache.view())).clone())
        cache.advance()
    return torch.cat(rows)


class _Run:
    """One call of generate(): the rows in flight and the requests still waiting.

    Live rows are rows 0..n-1 of the cache and of every tensor below; `owner[r]` is the request row r works for.
    """

    def __init__(self, decoder: Decoder, requests: Sequence[Request], params: Params, max_rows: int) -> None:
        self.decoder, self.requests, self.params = decoder, requests, params
        self.waiting = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), requests[i].prompt))
        self.completions: list[Completion | None] = [None] * len(requests)
        device = decoder.device
        widest = max(len(r.prompt) for r in requests)
        self.rows = min(len(requests), max_rows, _rows_that_fit(decoder, widest + params.max_tokens))
        distinct = len({r.prompt for r in requests})
        self.cache = Cache(decoder, self.rows, params.max_tokens, min(distinct, self.rows), widest)
        self.owner: list[int] = []
        self.count = torch.zeros(self.rows, dtype=torch.int64, device=device)  # tokens drawn so far
        self.token = torch.zeros(self.rows, dtype=torch.int64, device=device)  # the last one drawn
        self.uniform = torch.zeros(self.rows, params.max_tokens, dtype=torch.float64, device=device)
        self.tokens = torch.zeros(self.rows, params.max_tokens, dtype=torch.int32, device=device)
        self.logprobs = torch.zeros(self.rows, params.max_tokens, dtype=torch.float32, device=device)
        self.eos = torch.tensor(params.eos, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def finish(self) -> list[Completion]:
        while self.waiting or self.owner:
            free = self.rows - len(self.owner)
            if self.waiting and (not self.owner or free >= REFILL_SHARE * self.rows):
                self._admit(free)
            else:
                self._step()
        return [c for c in self.completions if c is not None]

    def _admit(self, free: int) -> None:
        """Give the free rows to the next requests, and draw their first tokens."""
        taken = self.waiting[:free]
        del self.waiting[:free]
        prompts = [self.requests[i].prompt for i in taken]
        first, last = len(self.owner), len(self.owner) + len(taken)
        for part in self._parts([p for p in dict.fromkeys(prompts) if p not in self.cache.slots]):
            self.cache.add_prompts(part, *self.decoder.prefill(part))
        hidden = self.cache.add_rows(prompts)
        self.owner += taken
        self.count[first:last] = 0
        if self.params.temperature > 0:
            drawn = np.stack([noise(self.requests[i].seed, self.params.max_tokens) for i in taken])
            self.uniform[first:last] = torch.from_numpy(drawn).to(self.decoder.device)
        self._choose(hidden, first)

    def _parts(self, prompts: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
        """Prompts, sorted by length, in parts small enough for one forward pass."""
        limit = PREFILL_TOKENS.get(self.decoder.device.type, PREFILL_TOKENS_ELSEWHERE)
        parts: list[list[tuple[int, ...]]] = []
        for prompt in prompts:
            if not parts or (len(parts[-1]) + 1) * len(prompt) > limit:
                parts.append([])
            parts[-1].append(prompt)
        return parts

    def _step(self) -> None:
        hidden = self.decoder.step(self.token[: len(self.owner)], self.cache.view())
        self.cache.advance()
        self._choose(hidden, 0)

    def _choose(self, hidden: Tensor, first: int) -> None:
        """Draw the next token of rows first..n-1, note it, and let finished rows go."""
        last = len(self.owner)
        per_block = max(1, LOGITS_AT_ONCE // self.decoder.architecture.vocab)
        for part, start in zip(hidden.split(per_block), range(first, last, per_block), strict=True):
            rows = torch.arange(start, start + len(part), device=hidden.device)
            count = self.count[rows]
            tokens, logprobs = draw(self.decoder.logits(part), self.uniform[rows, count], self.params)
            self.token[rows] = tokens
            self.tokens[rows, count] = tokens.to(torch.int32)
            self.logprobs[rows, count] = logprobs
        self.count[first:last] += 1
        token, count = self.token[first:last], self.count[first:last]
        stopped = (token[:, None] == self.eos).any(-1)
        over = stopped | (count >= self.params.max_tokens)
        done = over.nonzero()[:, 0]
        if len(done):
            self._leave((done + first).cpu().numpy(), stopped[done].tolist(), count[done].tolist())

    def _leave(self, done: np.ndarray, stopped: list[bool], counts: list[int]) -> None:
        """Write out finished rows and fill their places with rows from the end."""
        longest = max(counts)
        at = torch.from_numpy(done).to(self.decoder.device)
        tokens, logprobs = self.tokens[at, :longest].tolist(), self.logprobs[at, :longest].tolist()
        for row, stop, n, ids, scores in zip(done, stopped, counts, tokens, logprobs, strict=True):
            if not all(map(math.isfinite, scores[:n])):
                raise FloatingPointError("sampling: a log-probability is not finite; the model's logits are not")
            self.completions[self.owner[row]] = Completion(
                tuple(ids[:n]), "stop" if stop else "length", tuple(scores[:n])
            )
        moves = self.cache.leave(done.tolist())
        for hole, tail in zip(moves.holes, moves.tails, strict=True):
            self.owner[hole] = self.owner[tail]
        del self.owner[self.cache.n :]
        if moves.holes:
            to, of = (torch.tensor(rows, device=self.decoder.device) for rows in (moves.holes, moves.tails))
            for state in (self.count, self.token, self.uniform, self.tokens, self.logprobs):
                state[to] = state[of]


def _rows_that_fit(decoder: Decoder, tokens: int) -> int:
    """Rows of `tokens` tokens, prompt included, that the memory set aside for the cache holds; at least one."""
    budget = CPU_CACHE_BYTES
    if decoder.device.type == "cuda":
        free = torch.cuda.mem_get_info(decoder.device)[0]
        free += torch.cuda.memory_reserved(decoder.device) - torch.cuda.memory_allocated(decoder.device)
        budget = int(free * GPU_CACHE_SHARE)
    return max(1, budget // (decoder.architecture.cache_bytes(decoder.dtype) * tokens))

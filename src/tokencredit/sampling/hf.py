"""The fallback engine: any causal language model through its own forward pass and cache.

Prompts of unequal length are batched with padding on the left where the model is seen to ignore padding (checked
once, by its logits); other models, e.g. recurrent ones, get batches of equally long prompts. Each distinct prompt
is run once per batch, its cache entries are then repeated; finished rows leave the batch.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokencredit.sampling.draw import draw, noise
from tokencredit.sampling.types import Completion, Params, Request, check_requests
from tokencredit.sampling.weights import plain
from tokencredit.study.errors import UserError

MAX_ROWS = {"cpu": 128}
MAX_ROWS_ELSEWHERE = 256
LEAVE_SHARE = 0.25  # of the rows finished before they are taken out: it copies the whole cache


class TransformersEngine:
    """Engine on a live transformers or peft model, which it refers to: its weights are always current."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None, max_rows: int | None = None) -> None:
        self.model = model
        self.dtype = dtype
        names = inspect.signature(plain(model).forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        self.last_only = "logits_to_keep" in names
        self.max_rows = max_rows or MAX_ROWS.get(self.device.type, MAX_ROWS_ELSEWHERE)
        self.padded = {"attention_mask", "position_ids"} <= set(names) and self._ignores_padding()

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> TransformersEngine:
        """Load a from_pretrained folder; `weights` replace the stored ones where given."""
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype or "auto", local_files_only=True)
        if weights is not None:
            result = model.load_state_dict(weights, strict=False)
            tied = set(getattr(model, "_tied_weights_keys", None) or ())
            odd = [*result.unexpected_keys, *(k for k in result.missing_keys if k not in tied)]
            if odd:
                raise UserError(f"{folder}: the weights do not fit the model: {', '.join(odd[:3])}")
        return cls(model.to(device))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def update(self, model: Any) -> None:
        """Refer to `model` from now on."""
        self.model = model

    def sleep(self) -> None:
        """Nothing to give back: the model is the trainer's own."""

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        """One completion per request, in the requests' order."""
        if not requests:
            return []
        check_requests(requests, plain(self.model).get_input_embeddings().weight.shape[0])
        found: dict[int, Completion] = {}
        with self._inference():
            for batch in self._batches(requests):
                run = _Run(self, [requests[i] for i in batch], params)
                found.update(zip(batch, run.finish(), strict=True))
        return [found[i] for i in range(len(requests))]

    def forward(self, tokens: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """tokens [n, new], mask [n, all so far] -> logits of the last position [n, vocab] float32, cache."""
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": True}
        if cache is not None:
            given[self.cache_name] = cache
        if self.padded:
            given["attention_mask"] = mask
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        if self.last_only:
            given["logits_to_keep"] = 1
        out = plain(self.model)(**given)
        new = out.get(self.cache_name, None)
        if new is None:
            new = next((v for k, v in out.items() if k not in ("logits", "loss")), None)
        return out.logits[:, -1].float(), new

    def _batches(self, requests: Sequence[Request]) -> list[list[int]]:
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), requests[i].prompt))
        groups = [order]
        if not self.padded:
            groups = [list(group) for _, group in groupby(order, key=lambda i: len(requests[i].prompt))]
        return [group[i : i + self.max_rows] for group in groups for i in range(0, len(group), self.max_rows)]

    @contextlib.contextmanager
    def _inference(self) -> Any:
        """Evaluation mode, no gradients, at this engine's precision; the model's mode is put back afterwards."""
        training = self.model.training
        self.model.eval()
        stored = next(self.model.parameters()).dtype
        lower = self.dtype is not None and self.dtype != stored
        try:
            with torch.no_grad(), torch.autocast(self.device.type, dtype=self.dtype, enabled=lower):
                yield
        finally:
            self.model.train(training)

    def _ignores_padding(self) -> bool:
        """Whether a short prompt's logits are the same alone and left-padded beside a longer one, in two steps."""
        self.padded = True
        vocab = plain(self.model).get_input_embeddings().weight.shape[0]
        ids = (torch.arange(9, device=self.device) * 7 + 3) % vocab
        pair = torch.stack([ids, torch.cat([ids.new_zeros(4), ids[4:]])])
        mask = torch.ones_like(pair)
        mask[1, :4] = 0
        more = ids[:2, None]
        with self._inference():
            together, cache = self.forward(pair, mask, None)
            alone, own = self.forward(pair[1:, 4:], mask[1:, 4:], None)
            mask = torch.cat([mask, mask.new_ones(2, 1)], 1)
            together_next, _ = self.forward(more, mask, cache)
            alone_next, _ = self.forward(more[1:], mask[1:, 4:], own)
        rough = together.new_tensor(1e-3 if next(self.model.parameters()).dtype == torch.float32 else 0.1)
        limit = rough * alone.abs().max().clamp(min=1)
        return all(
            bool((a[1] - b[0]).abs().max() <= limit) for a, b in ((together, alone), (together_next, alone_next))
        )


class _Run:
    """One batch from prompts to the last finished row."""

    def __init__(self, engine: TransformersEngine, requests: Sequence[Request], params: Params) -> None:
        self.engine, self.requests, self.params = engine, requests, params
        self.drawn: list[list[int]] = [[] for _ in requests]
        self.logprobs: list[list[float]] = [[] for _ in requests]
        self.stopped = [False] * len(requests)
        draws = params.max_tokens if params.temperature > 0 else 1
        self.uniform = torch.from_numpy(np.stack([noise(r.seed, draws) for r in requests])).to(engine.device)

    def finish(self) -> list[Completion]:
        logits, mask, cache = self._prefill()
        owner = list(range(len(self.requests)))  # request of each row; a finished one may stay a while
        for t in range(self.params.max_tokens):
            at = torch.tensor(owner, device=mask.device)
            uniform = self.uniform[at, t if self.params.temperature > 0 else 0]
            tokens, logprobs = draw(logits, uniform, self.params)
            alive = self._note(owner, tokens.tolist(), logprobs.tolist())
            if not any(alive) or t + 1 == self.params.max_tokens:
                break
            if alive.count(False) > LEAVE_SHARE * len(owner) and hasattr(cache, "reorder_cache"):
                kept = torch.tensor([row for row, a in enumerate(alive) if a], device=mask.device)
                cache.reorder_cache(kept)
                owner = [owner[row] for row in kept.tolist()]
                mask, tokens = mask[kept], tokens[kept]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            logits, cache = self.engine.forward(tokens[:, None], mask, cache)
        return [
            Completion(tuple(ids), "stop" if stop else "length", tuple(scores))
            for ids, stop, scores in zip(self.drawn, self.stopped, self.logprobs, strict=True)
        ]

    def _prefill(self) -> tuple[Tensor, Tensor, Any]:
        prompts = list(dict.fromkeys(r.prompt for r in self.requests))
        width = max(map(len, prompts))
        device = self.engine.device
        tokens = torch.tensor([[*([0] * (width - len(p))), *p] for p in prompts], device=device)
        mask = torch.tensor([[*([0] * (width - len(p))), *([1] * len(p))] for p in prompts], device=device)
        place = {p: i for i, p in enumerate(prompts)}
        rows = torch.tensor([place[r.prompt] for r in self.requests], device=device)
        logits, cache = self.engine.forward(tokens, mask, None)
        if hasattr(cache, "reorder_cache"):
            cache.reorder_cache(rows)
            return logits[rows], mask[rows], cache
        logits, cache = self.engine.forward(tokens[rows], mask[rows], None)
        return logits, mask[rows], cache

    def _note(self, owner: list[int], tokens: list[int], logprobs: list[float]) -> list[bool]:
        """Append the drawn tokens of rows not yet finished -> which rows go on."""
        alive = []
        for i, token, logprob in zip(owner, tokens, logprobs, strict=True):
            if not self.stopped[i]:
                if not math.isfinite(logprob):
                    raise FloatingPointError("sampling: a log-probability is not finite; the model's logits are not")
                self.drawn[i].append(token)
                self.logprobs[i].append(logprob)
                self.stopped[i] = token in self.params.eos
            alive.append(not self.stopped[i])
        return alive

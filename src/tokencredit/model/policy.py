"""The policy under training: a causal language model, whole or with LoRA, and its score pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokencredit.model.scores import Scores, token_scores
from tokencredit.study.config import Adapter
from tokencredit.study.errors import UserError

TARGETS: dict[str, Any] = {
    "all-linear": "all-linear",
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
}


class Policy:
    """Model, head and trainable parameters. `forwards` counts response rows scored, by purpose.

    check: compare the head's logits with the model's own; weights without data (plan/) have none to compare.
    """

    def __init__(
        self,
        model: Any,
        temperature: float,
        tile: int = 2**23,
        autocast: torch.dtype | None = None,
        check: bool = True,
    ):
        self.model, self.temperature, self.tile, self.autocast = model, temperature, tile, autocast
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.backbone: Any = getattr(inner, inner.base_model_prefix)
        self.head: Any = inner.get_output_embeddings()
        self.config = inner.config
        self.forwards: dict[str, int] = {}
        if check:
            _check_head(inner, self.backbone, self.head)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def precision(self) -> torch.dtype:
        """What scores are kept in: float32, or float64 for a float64 model."""
        return torch.float64 if self.head.weight.dtype == torch.float64 else torch.float32

    def parameters(self) -> list[nn.Parameter]:
        """Trainable parameters, in a fixed order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def trainable_state(self) -> dict[str, Tensor]:
        """Name -> trainable parameter (no copy)."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    def load_trainable(self, state: dict[str, Tensor]) -> None:
        """Copy a trainable_state into the model; every name must be there, none left over."""
        mine = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if mine.keys() != state.keys():
            odd = sorted(mine.keys() ^ state.keys())[:3]
            raise UserError(f"saved weights do not belong to this model and adapter: {', '.join(odd)}")
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(state[name])

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        purpose: str,
        starts: Sequence[int] | None = None,
        unseen: Sequence[tuple[int, int]] | None = None,
    ) -> Scores:
        """Scores of every response token from `starts` on (default: 0), flat and row after row.

        Prompt and response are right-padded together; attention is causal, so padding is never seen and no
        attention mask is needed. Position t of a response is predicted at the position before it.
        unseen: per row, response tokens [start, stop) that no other token attends to; positions stay as they are.
        Entropy and margin come with the purpose "score" alone: probes and updates read the log-probability only.
        """
        self.forwards[purpose] = self.forwards.get(purpose, 0) + len(prompts)
        ids, at, targets = pack(prompts, responses, self.device, starts)
        seen = visible(ids, prompts, unseen) if unseen else None
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            hidden = self.backbone(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state
        picked = hidden.reshape(-1, hidden.shape[-1])[at]
        head, bias = self.head.weight.to(hidden.dtype), getattr(self.head, "bias", None)
        return token_scores(picked, head, targets, self.temperature, bias, self.tile, statistics=purpose == "score")


def pack(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    device: torch.device,
    starts: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(ids [B, L] right-padded with 0, flat indices [M] of the positions that predict, targets [M])."""
    rows = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.long)
    first = starts or [0] * len(rows)
    at = [
        i * width + len(p) + t - 1
        for i, (p, r) in enumerate(zip(prompts, responses, strict=True))
        for t in range(first[i], len(r))
    ]
    targets = [token for r, start in zip(responses, first, strict=True) for token in r[start:]]
    return ids.to(device), torch.tensor(at, device=device), torch.tensor(targets, device=device)


def visible(ids: Tensor, prompts: Sequence[Sequence[int]], unseen: Sequence[tuple[int, int]]) -> Tensor:
    """Attention mask [B, L] of 1, and 0 at each row's unseen response tokens."""
    mask = torch.ones_like(ids)
    for row, (prompt, (start, stop)) in enumerate(zip(prompts, unseen, strict=True)):
        mask[row, len(prompt) + start : len(prompt) + stop] = 0
    return mask


def load_policy(
    folder: Path | str,
    adapter: Adapter,
    dtype: str,
    device: str,
    temperature: float,
    seed: int,
    tile: int = 2**23,
    checkpointing: bool = False,
) -> Policy:
    """Load a from_pretrained folder for training. LoRA starts from `seed` (A random, B zero: the base model)."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    stored, autocast = precisions(adapter, dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=stored, local_files_only=True, attn_implementation="sdpa"
    )
    model.to(device)
    return Policy(for_training(model, adapter, seed, checkpointing), temperature, tile, autocast)


def precisions(adapter: Adapter, dtype: str) -> tuple[torch.dtype, torch.dtype | None]:
    """What the base model's weights are kept in, and what the forward pass is cast to (None: nothing).

    dtype bfloat16: frozen weights are kept in bfloat16; trained ones are float32 (at a rate of 1e-6 most updates
    would round away in bfloat16) and the forward pass runs under autocast.
    """
    compute = getattr(torch, dtype)
    stored = torch.float32 if adapter.kind == "full" else compute
    return stored, compute if compute != torch.float32 else None


def for_training(model: Any, adapter: Adapter, seed: int, checkpointing: bool) -> Any:
    """The model with what the adapter trains. Dropout is zero, so that the ratio is exactly 1 at the first update."""
    _no_dropout(model)
    if checkpointing:
        model.activation_checkpointing_enable()
    if adapter.kind == "lora":
        model = add_lora(model, adapter, seed)
    else:
        model.requires_grad_(True)
    model.train(checkpointing)  # activation checkpointing is only done in training mode
    return model


def add_lora(model: Any, adapter: Adapter, seed: int) -> Any:
    """LoRA by peft, initialised from `seed` alone."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=TARGETS[adapter.targets],
        task_type="CAUSAL_LM",
    )
    with seeded(seed):
        return get_peft_model(model, config)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Libraries that draw from torch's global generator: seed it inside, put it back outside."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _no_dropout(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for name in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout"):
        if getattr(model.config, name, None):
            setattr(model.config, name, 0.0)
    for module in model.modules():
        if getattr(module, "attention_dropout", None):
            module.attention_dropout = 0.0


def _check_head(model: Any, backbone: Any, head: Any) -> None:
    """Refuse models whose logits are not plainly head(hidden): soft caps and scales would make every score wrong."""
    ids = torch.arange(1, 9, device=head.weight.device)[None] % head.weight.shape[0]
    with torch.no_grad():
        ours = head(backbone(input_ids=ids, use_cache=False).last_hidden_state)
        theirs = model(input_ids=ids, use_cache=False).logits
    if not torch.allclose(ours.float(), theirs.float(), rtol=1e-3, atol=1e-3):
        raise UserError(
            f"{type(model).__name__} changes its logits after the output layer (a soft cap or a scale); "
            "its token scores cannot be computed from the hidden states, so it is not supported"
        )

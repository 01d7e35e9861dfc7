"""Random tiny models of several architectures, and what transformers itself makes of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

VOCAB = 600  # drawn in two levels: four runs of 128 tokens and a shorter one
PROMPTS = [(5, 17, 3), (9, 8, 7, 6, 5, 4, 3), (5, 17, 3), (200, 1), (33,), (250, 251, 3, 4, 99, 120, 7, 7, 7, 1, 2)]

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-gqa-bias": ("Llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    "qwen2-gqa": ("Qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "qwen2-tied": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3-gqa": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}),
    "qwen3-tied": ("Qwen3", {"num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen3-theta": (
        "Qwen3",
        {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ),
}

VLLM: dict[str, Any] = {"kind": "vllm", "cache_gb": 0.02, "rows": 64}  # small and quick to start
VLLM_SHAPE: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "initializer_range": 0.15}  # heads it can attend with


def build(name: str, seed: int = 0, **changes: Any) -> Any:
    """A model of one of FAMILIES; biases and gains are random too, so that none of them goes untested."""
    import transformers

    family, settings = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**_SHAPE, **settings, **changes})
    return randomised(getattr(transformers, f"{family}ForCausalLM"), config, seed)


def randomised(kind: Any, config: Any, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def generate_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """transformers' own greedy continuation of one prompt, without batching."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def forced_logprobs(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], temperature: float, suppress: Sequence[int] = ()
) -> torch.Tensor:
    """Log-probabilities of `tokens` after `prompt` by one plain forward pass, in float64 after the logits."""
    ids = torch.tensor([[*prompt, *tokens]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
    logits[:, list(suppress)] = -torch.inf
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]

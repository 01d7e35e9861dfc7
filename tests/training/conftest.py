"""A random tiny model and frozen rollouts: no sampling, no grading, known lengths and rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tokencredit.model.policy import Policy
from tokencredit.study.config import Training
from tokencredit.training.rollout import Rollout

VOCAB = 61


class DoubleNorm(torch.nn.Module):
    """RMSNorm that stays in its input's precision (transformers' own goes through float32)."""

    def __init__(self, weight: torch.Tensor, eps: float):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(weight), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def tiny_model(seed: int = 0, tied: bool = True, dtype: torch.dtype = torch.float64) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=24, max_position_embeddings=128, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    model = model.to(dtype).eval()
    if dtype == torch.float64:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child).__name__.endswith("RMSNorm"):
                    setattr(parent, name, DoubleNorm(child.weight.detach().clone(), child.variance_epsilon))
    return model


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    def make(seed: int = 0, tied: bool = True, dtype: torch.dtype = torch.float64, temperature: float = 1.0) -> Policy:
        return Policy(tiny_model(seed, tied, dtype), temperature, tile=5 * VOCAB)

    return make


def make_rollout(prompts: int = 4, group: int = 4, seed: int = 0, longest: int = 12) -> Rollout:
    """Random prompts and responses; the first prompt's group has equal rewards, and one response is cut short."""
    g = torch.Generator().manual_seed(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        size = int(torch.randint(low, high + 1, (1,), generator=g))
        return tuple(torch.randint(1, VOCAB, (size,), generator=g).tolist())

    asked = [tokens(3, 9) for _ in range(prompts)]
    responses = [tokens(1, longest) for _ in range(prompts * group)]
    rewards = torch.randint(2, (prompts * group,), generator=g).double()
    rewards[:group] = 1.0
    rewards[group], rewards[group + 1] = 0.0, 1.0
    return Rollout(
        problems=[{"problem_id": f"p{i}"} for i in range(prompts)],
        prompts=[asked[i // group] for i in range(prompts * group)],
        responses=responses,
        finish=["length" if i == group + 1 else "stop" for i in range(prompts * group)],
        texts=["" for _ in responses],
        groups=torch.arange(prompts).repeat_interleave(group),
        rewards=rewards,
        sampler_logprobs=[tuple(0.0 for _ in r) for r in responses],
        row_seeds=list(range(prompts * group)),
    )


def make_training(**more: Any) -> Training:
    values = {"prompts": 4, "group": 4, "updates": 2, "rollouts": 3, "microbatch_tokens": 10_000}
    return Training(**(values | more))

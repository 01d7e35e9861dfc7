"""A random tiny model and frozen rollouts: no sampling, no grading, known lengths and rewards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tokencredit.model.base import build_base
from tokencredit.model.policy import Policy
from tokencredit.model.scratch import save_tokenizer, train_tokenizer
from tokencredit.study import load_study, specs
from tokencredit.study.config import Training
from tokencredit.study.tables import write_table
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
        correct=rewards,
        sampler_logprobs=[tuple(0.0 for _ in r) for r in responses],
        row_seeds=list(range(prompts * group)),
    )


def make_training(**more: Any) -> Training:
    values = {"prompts": 4, "group": 4, "updates": 2, "rollouts": 3, "microbatch_tokens": 10_000}
    return Training(**(values | more))


def study(**training: Any) -> dict[str, Any]:
    source = {"kind": "synthetic", "split": "train", "size": 6}
    return {
        "study": "t",
        "problems": source,
        "benchmarks": {"b": {"source": source}},
        "models": {"m": {"source": {"kind": "folder", "path": "x"}, "prompt": {"template": "{problem}"}}},
        "methods": {"scapo": {"credit": [{"kind": "margin"}, {"kind": "semifactual", "steps": 6, "strength": 0.1}]}},
        "training": {
            "rollouts": 4, "prompts": 4, "group": 4, "updates": 2, "max_tokens": 8, "max_prompt_tokens": 40,
            "checkpoints": [4], "microbatch_tokens": 200, "optimizer": {"lr": 1.0e-2, "warmup_steps": 2}, **training,
        },
        "grid": {"models": ["m"], "methods": ["scapo"], "seeds": [0], "benchmarks": ["b"], "baseline": "scapo"},
    }  # fmt: skip


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base record, problems and semifactuals of a random tiny model."""
    root = tmp_path_factory.mktemp("inputs")
    folder = root / "base"
    model = tiny_model(dtype=torch.float32)
    tokenizer = train_tokenizer(["one two three four five six"], 107)
    model.resize_token_embeddings(tokenizer.get_vocab_size(), mean_resizing=False)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    spec = specs(load_study(study()))["base.m"] | {"source": {"kind": "folder", "path": str(folder)}}
    build_base(spec, root / "base.json", root / "state")
    problems = [
        {"problem_id": f"p{i}", "source": "", "problem": f"{i} one two", "answer": "1", "answer_kind": "integer",
         "choices": [], "tags": []}
        for i in range(6)
    ]  # fmt: skip
    write_table("problems", problems, root / "problems.parquet")
    rows = [
        {"problem_id": f"p{i}", "kind": kind, "text": f"{kind[0]} {i} one two", "origin": "rule",
         "valid": (i, kind) != (3, "paraphrase"), "reason": ""}
        for i in range(6)
        for kind in ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
    ]  # fmt: skip
    write_table("semifactuals", rows, root / "semifactuals.parquet")
    return root

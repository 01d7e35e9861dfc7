"""vLLM alone: hand-overs, and what it gets wrong without an error. Runs in .venv-vllm, called by test_vllm.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.sampling.folders import make_folder
from tests.sampling.models import PROMPTS, VLLM, VLLM_SHAPE, build, forced_logprobs
from tokencredit.sampling import Params, Request, make_engine
from tokencredit.sampling.handover import probe
from tokencredit.study.errors import UserError

pytestmark = pytest.mark.skipif(not os.environ.get("TOKENCREDIT_VLLM"), reason="runs in .venv-vllm (make env-vllm)")
REQUESTS = [Request(p, i) for i, p in enumerate(PROMPTS)]
SAMPLED = Params(max_tokens=12, temperature=0.7)


@pytest.fixture
def started() -> Iterator[Any]:
    """Starts engines and ends them with the test."""
    engines = []

    def start(model: Any, weights: Any = None, dtype: Any = None, **settings: Any) -> Any:
        engines.append(make_engine(model, kind={**VLLM, **settings}, weights=weights, dtype=dtype))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def check(engine: Any, model: Any, atol: float = 3e-5) -> list[tuple[int, ...]]:
    """The engine's log-probabilities are the model's; gives the tokens."""
    found = engine.generate(REQUESTS, SAMPLED)
    for prompt, c in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            expected = forced_logprobs(model, prompt, c.tokens, SAMPLED.temperature)
        torch.testing.assert_close(torch.tensor(c.logprobs).double(), expected, rtol=0, atol=atol)
    return [c.tokens for c in found]


def disturb(model: Any, seed: int, scale: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn(parameter.shape, generator=generator)


def with_lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))


@pytest.mark.parametrize("name", ["qwen3-tied", "llama-gqa-bias"])
def test_full_weights_arrive_each_time(started: Any, name: str) -> None:
    model = build(name, **VLLM_SHAPE)
    engine = started(model)
    seen = [check(engine, model)]
    kept = {n: p.clone() for n, p in model.named_parameters()}
    assert check(engine, model) == seen[0]
    assert all(torch.equal(p, kept[n]) for n, p in model.named_parameters())
    for seed in (1, 2):
        disturb(model, seed)
        engine.update(model)
        seen.append(check(engine, model))
    assert seen[0] != seen[1] != seen[2] != seen[0]


@pytest.mark.parametrize("handover", ["merged", "adapter"])
def test_an_adapter_is_never_stale(started: Any, handover: str) -> None:
    model = with_lora(build("qwen3-tied", **VLLM_SHAPE))
    engine = started(model, handover=handover)
    seen = [check(engine, model)]
    for seed in (1, 2, 3):
        disturb(model, seed, 0.1)
        engine.update(model)
        seen.append(check(engine, model))
    assert len({tuple(s) for s in seen}) == 4
    if handover == "adapter":
        assert engine.llm.llm_engine.list_loras() == {engine.adapters.count}
        assert engine.adapters.count == 4


def test_a_hand_over_that_does_not_arrive_is_an_error(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("qwen3-gqa", **VLLM_SHAPE)
    engine = started(model)
    disturb(model, 1)
    assert probe(engine, model).token > 0.01
    arrives = engine.handover.weights
    monkeypatch.setattr(engine.handover, "weights", lambda weights: None)
    with pytest.raises(UserError, match="did not arrive"):
        engine.update(model)
    monkeypatch.setattr(engine.handover, "weights", arrives)
    engine.update(model)
    assert engine.gap.token < 1e-4
    with pytest.raises(UserError, match="not loaded"):
        engine.handover.weights({n: p.detach() for n, p in model.named_parameters() if "layers.1.mlp" not in n})


def test_a_prefix_in_the_cache_is_forgotten(started: Any) -> None:
    model = build("qwen3-gqa", **VLLM_SHAPE)
    engine = started(model)
    request, params = Request(tuple(i * 7 % 500 for i in range(100)), 5), Params(max_tokens=4)
    for seed in (1, 2):
        engine.generate([request], params)  # three whole blocks of the cache
        disturb(model, seed)
        engine.update(model)
        found = engine.generate([request], params)[0]
        expected = forced_logprobs(model, request.prompt, found.tokens, 1.0)
        torch.testing.assert_close(torch.tensor(found.logprobs).double(), expected, rtol=0, atol=3e-5)


def test_fixed_responses_are_read_with_the_current_weights(started: Any) -> None:
    """Prompt log-probabilities against a forward pass, also after a hand-over and a prefix in the cache."""
    model = build("qwen3-gqa", **VLLM_SHAPE)
    engine = started(model)
    prompts = [*PROMPTS, tuple(i * 7 % 500 for i in range(100))]
    responses = [tuple((11 * i + t) % 500 for t in range(2 + 3 * i)) for i in range(len(prompts))]
    for seed in (1, 2):
        for prompt, response, found in zip(prompts, responses, engine.forced(prompts, responses), strict=True):
            expected = forced_logprobs(model, prompt, response, 1.0)
            torch.testing.assert_close(torch.tensor(found).double(), expected.detach(), rtol=0, atol=3e-5)
        disturb(model, seed)
        engine.update(model)
    assert engine.forced([], []) == []


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_and_other_weights_for_it(started: Any, tmp_path: Path, tied: bool) -> None:
    model, _ = make_folder(tmp_path / "base", tied=tied, **VLLM_SHAPE)
    if tied:  # a stale head beside the embedding, as some folders have it, counts for nothing
        stored = load_file(tmp_path / "base" / "model.safetensors")
        stored["lm_head.weight"] = torch.ones_like(stored["model.embed_tokens.weight"])
        save_file(stored, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    engine = started(tmp_path / "base")
    first = check(engine, model)
    disturb(model, 3)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert check(started(tmp_path / "base", weights), model) != first


def test_bfloat16_is_near(started: Any) -> None:
    model = build("qwen3-tied", **VLLM_SHAPE).to(torch.bfloat16)
    engine = started(model)
    assert engine.dtype == torch.bfloat16
    assert 1e-5 < engine.gap.token < 0.1
    check(engine, model, atol=0.3)


def test_what_does_not_fit_is_said(started: Any) -> None:
    model = build("qwen3-gqa", **VLLM_SHAPE)
    engine = started(model, max_context=40)
    engine.generate(REQUESTS[:1], Params(max_tokens=37))
    with pytest.raises(UserError, match="max_context"):
        engine.generate(REQUESTS[:1], Params(max_tokens=38))
    with pytest.raises(UserError, match="cannot run"):
        make_engine(build("qwen3-gqa", head_dim=8), kind=VLLM)


@pytest.mark.parametrize("kind", ["base", "lora", "full"])
def test_evaluation(tmp_path: Path, kind: str) -> None:
    """n = 128 samples of a base folder and of checkpoints; again with the same seeds: the same file."""
    from tests.sampling.folders import evaluate_folder

    tables = [evaluate_folder(tmp_path / str(i), kind, {**VLLM}, samples=128, **VLLM_SHAPE) for i in range(2)]
    assert tables[0].equals(tables[1])
    assert tables[0].num_rows == 2 * 128
    assert len(set(tables[0].column("text").to_pylist())) > 64
    record = json.loads((tmp_path / "0" / "record.json").read_text())
    assert record["engine"] == "VllmEngine"

"""Which weights an engine samples from, and which engine a model gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sampling.models import PROMPTS, VOCAB, build, generate_greedy, randomised
from tokencredit.sampling import Params, Request, Unsupported, make_engine
from tokencredit.sampling.weights import effective_weights

GREEDY = Params(max_tokens=12, temperature=0)
REQUESTS = [Request(p, i) for i, p in enumerate(PROMPTS)]


def greedy(model: Any) -> list[list[int]]:
    return [generate_greedy(model, p, GREEDY.max_tokens) for p in PROMPTS]


def sampled(engine: Any) -> list[list[int]]:
    return [list(c.tokens) for c in engine.generate(REQUESTS, GREEDY)]


def disturb(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def lora(model: Any, **settings: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", **settings))
    disturb(adapted, 3)  # peft starts with B = 0
    return adapted.eval()


@pytest.mark.parametrize("kind", ["fast", "hf"])
def test_update_takes_over_the_trained_weights(kind: str) -> None:
    model = build("qwen2-tied", seed=1)
    engine = make_engine(model, kind=kind)
    before = sampled(engine)
    disturb(model, 1)
    if kind == "fast":
        assert sampled(engine) == before  # a snapshot: training goes on while it samples
    engine.update(model)
    after = sampled(engine)
    assert after == greedy(model)
    assert after != before


@pytest.mark.parametrize("kind", ["fast", "hf"])
def test_lora_is_merged_and_the_model_left_alone(kind: str) -> None:
    model = lora(build("qwen2-gqa", seed=2))
    stored = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine = make_engine(model, kind=kind)
    first = sampled(engine)
    assert first == greedy(model)
    disturb(model, 4)
    engine.update(model)
    assert sampled(engine) == greedy(model) != first
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert all(torch.equal(p, stored[n]) for n, p in model.named_parameters() if n not in trained)
    with model.disable_adapter():
        engine.update(model)
        assert sampled(engine) == greedy(model)


def test_merged_weights_are_those_peft_merges() -> None:
    model = lora(build("qwen3-gqa", seed=2))
    ours = {n: w.clone() for n, w in effective_weights(model).items()}
    theirs = dict(model.merge_and_unload().named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight.detach(), rtol=1e-6, atol=1e-6)


def test_other_adapters_go_to_the_transformers_engine(caplog: pytest.LogCaptureFixture) -> None:
    model = lora(build("llama-tied", seed=2), use_dora=True)
    with pytest.raises(Unsupported, match="LoRA"):
        make_engine(model, kind="fast")
    engine = make_engine(model)
    assert type(engine).__name__ == "TransformersEngine"
    assert "LoRA" in caplog.text
    assert sampled(engine) == greedy(model)


@pytest.mark.parametrize("kind", ["fast", "hf"])
@pytest.mark.parametrize("name", ["qwen3-tied", "qwen2-gqa"])
def test_folder_is_the_live_model(kind: str, name: str, tmp_path: Path) -> None:
    model = build(name, seed=3)
    model.save_pretrained(tmp_path)
    assert sampled(make_engine(tmp_path, kind=kind)) == greedy(model)
    other = build(name, seed=4)
    replaced = make_engine(str(tmp_path), kind=kind, weights=effective_weights(other))
    assert sampled(replaced) == greedy(other)


def test_sharded_folder(tmp_path: Path) -> None:
    model = build("qwen2-gqa", seed=3)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert sampled(make_engine(tmp_path, kind="fast")) == greedy(model)


def test_folder_needs_no_transformers(tmp_path: Path) -> None:
    build("qwen3-tied", seed=3).save_pretrained(tmp_path)
    code = (
        "import sys; from tokencredit.sampling import *\n"
        f"make_engine({str(tmp_path)!r}).generate([Request((1, 2), 0)], Params(max_tokens=3))\n"
        "assert 'transformers' not in sys.modules and 'peft' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


UNSUPPORTED = {
    "scaled rope": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "sliding": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    "gelu": {"hidden_act": "gelu"},
}


@pytest.mark.parametrize("changes", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_variants_of_known_models_fall_back(changes: dict[str, Any]) -> None:
    model = build("qwen2-gqa", seed=6, **changes)
    with pytest.raises(Unsupported):
        make_engine(model, kind="fast")
    assert sampled(make_engine(model)) == greedy(model)


def test_a_model_that_computes_something_else_is_noticed() -> None:
    model = build("llama-tied", seed=6)
    model.lm_head.register_forward_hook(lambda module, given, out: 5 * torch.tanh(out / 5))
    with pytest.raises(Unsupported, match="logits differ"):
        make_engine(model, kind="fast")
    assert type(make_engine(model)).__name__ == "TransformersEngine"


def test_absolute_positions() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    model = randomised(GPT2LMHeadModel, config, 7)
    engine: Any = make_engine(model)
    assert engine.padded
    assert sampled(engine) == greedy(model)


def test_recurrent_models_are_not_padded() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = randomised(MambaForCausalLM, config, 8)
    engine: Any = make_engine(model)
    assert not engine.padded
    assert sampled(engine) == greedy(model)


def test_bfloat16_stays_near_float32() -> None:
    model = build("qwen3-gqa", seed=9)
    engine = make_engine(model, dtype="bfloat16")
    first = engine.generate(REQUESTS, Params(max_tokens=1, temperature=0))
    exact = make_engine(model).generate(REQUESTS, Params(max_tokens=1, temperature=0))
    assert [c.logprobs[0] for c in first] == pytest.approx([c.logprobs[0] for c in exact], abs=0.1)

"""The planned memory of a training step against that of real ones, counted by PyTorch's allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tokencredit.model.policy import load_policy
from tokencredit.plan.memory import sampler, train_step
from tokencredit.plan.shapes import Shape, published, shape_of
from tokencredit.study.base import parse
from tokencredit.study.config import Model, Training
from tokencredit.study.errors import UserError
from tokencredit.study.methods import Method
from tokencredit.study.sources import HubModel
from tokencredit.training.probes import Sources
from tokencredit.training.rollout import Rollout
from tokencredit.training.update import prepare, update

PROMPT, RESPONSE = 32, 96
SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 384, "vocab_size": 2000}
WIDE_VOCABULARY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 16000}
DEEP = {"hidden_size": 96, "num_hidden_layers": 8, "intermediate_size": 256, "vocab_size": 500}


def training(**more: Any) -> Training:
    """Two updates of 8 responses in 2 micro-batches of 4."""
    rows = {"prompts": 4, "group": 4, "updates": 2, "rollouts": 1, "microbatch_tokens": 4 * (PROMPT + RESPONSE)}
    return Training(**(rows | {"max_prompt_tokens": PROMPT, "max_tokens": RESPONSE} | more))


def make_folder(folder: Path, kind: str, **values: Any) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": values["hidden_size"] // 4}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(heads | values))).save_pretrained(folder)
    return folder


def full_rollout(vocab: int) -> Rollout:
    """Responses at the limit, in groups with both rewards."""
    g = torch.Generator().manual_seed(0)

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocab, (size,), generator=g).tolist())

    return Rollout(
        problems=[{"problem_id": f"p{i}"} for i in range(4)],
        prompts=[tokens(PROMPT) for _ in range(16)],
        responses=[tokens(RESPONSE) for _ in range(16)],
        finish=["stop"] * 16,
        texts=[""] * 16,
        groups=torch.arange(4).repeat_interleave(4),
        correct=torch.tensor([0.0, 1.0] * 8, dtype=torch.float64),
        sampler_logprobs=[(0.0,) * RESPONSE] * 16,
        row_seeds=list(range(16)),
    )


def measured(folder: Path, model: Model, t: Training, vocab: int) -> int:
    """Bytes at the peak of the trainer's second update: what lies there before it, and what the allocator hands out."""
    from torch.profiler import ProfilerActivity, profile

    policy = load_policy(folder, model.adapter, model.dtype, "cpu", 1.0, 0, t.score_tile, model.gradient_checkpointing)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-4, fused=True)
    batch = prepare(policy, full_rollout(vocab), Method(), t, 1, Sources(), {})
    first, second = batch.minibatches
    assert len(second.learning) == 2
    update(policy, optimizer, batch, first, Method(), 1.0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        update(policy, optimizer, batch, second, Method(), 1.0)
    live = peak = 0
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")  # type: ignore[union-attr]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    states = [v for state in optimizer.state.values() for v in state.values() if v.dim() > 0]
    there = {id(p): p for p in (*policy.model.parameters(), *states)}
    return peak + sum(p.numel() * p.element_size() for p in there.values())


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize(
    ("kind", "size", "settings", "more"),
    [
        ("qwen3", SMALL, {"dtype": "float32"}, {}),
        ("qwen3", SMALL, {"dtype": "bfloat16", "gradient_checkpointing": True}, {}),
        ("llama", SMALL, {"dtype": "bfloat16"}, {"tie_word_embeddings": False}),
        ("llama", DEEP, {"dtype": "float32", "gradient_checkpointing": True}, {}),
        ("qwen3", DEEP, {"dtype": "bfloat16"}, {"tie_word_embeddings": True}),
        ("qwen3", WIDE_VOCABULARY, {"dtype": "float32"}, {"tie_word_embeddings": True}),
        ("llama", WIDE_VOCABULARY, {"dtype": "float32", "score_tile": 2**18}, {"tie_word_embeddings": False}),
    ],
)
def test_step_is_planned_within_15_percent_of_a_real_one(
    adapter: str, kind: str, size: dict[str, int], settings: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "m", kind, **size, **more)
    tile = {"score_tile": settings["score_tile"]} if "score_tile" in settings else {}
    model = parse(
        Model,
        {k: v for k, v in settings.items() if k != "score_tile"}
        | {"source": {"kind": "folder", "path": str(folder)}, "adapter": {"kind": adapter, "rank": 8, "alpha": 16}},
        "test",
    )
    t = training(**tile)
    planned = train_step(shape_of(model.source, "test"), model, t)
    assert (planned.rows, planned.width) == (4, PROMPT + RESPONSE)
    assert planned.total == pytest.approx(measured(folder, model, t, size["vocab_size"]), rel=0.15)


def parameters(shape: Shape) -> int:
    """Counted by transformers' own model."""
    from tokencredit.plan.memory import _architecture

    with torch.device("meta"):
        return sum(p.numel() for p in _architecture(shape, torch.bfloat16).parameters())


def test_published_shapes_have_the_published_sizes() -> None:
    known = {name: parameters(Shape(values, "")) for name, values in published().items()}
    # model.safetensors of MiniCPM5-2B-Base has 5,033,557,128 bytes: two for each parameter, and a header
    assert 0 < 5_033_557_128 - 2 * known["openbmb/MiniCPM5-2B-Base"] < 100_000
    # Qwen3's report: 4.0 and 1.7 billion parameters, 3.6 and 1.4 without the embedding
    for name, whole, bare in (("Qwen/Qwen3-4B-Base", 4.0, 3.6), ("Qwen/Qwen3-1.7B-Base", 1.7, 1.4)):
        shape = Shape(published()[name], "")
        assert round(known[name] / 1e9, 1) == whole
        assert round((known[name] - shape.vocab * shape.hidden) / 1e9, 1) == bare


def test_keys_and_values_of_a_token() -> None:
    shape = Shape(published()["Qwen/Qwen3-4B-Base"], "")
    assert shape.cache_bytes(2) == 2 * 36 * 8 * 128 * 2 == 147_456


def test_engine_takes_its_share_and_gives_it_back_while_it_sleeps() -> None:
    shape, source = Shape(published()["Qwen/Qwen3-4B-Base"], ""), {"kind": "hub", "id": "x", "revision": "y"}

    def made(**engine: Any) -> Any:
        model = parse(Model, {"source": source, "dtype": "bfloat16", "engine": {"kind": "vllm", **engine}}, "test")
        return sampler(shape, model, 4_000_000_000, 1000, 80 * 10**9)

    half = made(gpu_share=0.5)
    assert (half.weights, half.cache, half.total) == (8 * 10**9, 32 * 10**9, 40 * 10**9)
    assert half.one_response == 147_456_000
    assert not half.stays and made(sleep=False).stays
    assert made(gpu_share=0.5, tensor_parallel=2).weights == 4 * 10**9
    assert made(gpu_share=0.05).cache < 0


def test_model_that_transformers_does_not_know_is_named() -> None:
    shape = Shape(published()["Qwen/Qwen3-4B-Base"] | {"model_type": "own"}, "here/config.json")
    model = parse(Model, {"source": {"kind": "folder", "path": "here"}}, "test")
    with pytest.raises(UserError, match=r"here/config\.json: transformers knows no model_type 'own'"):
        train_step(shape, model, training())


def test_model_of_unknown_shape_is_told_how_to_become_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"models\.m: the shape of a/b is not known here.*hf download a/b config\.json"):
        shape_of(HubModel(kind="hub", id="a/b", revision="c"), "models.m")
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    with pytest.raises(UserError, match=r"config\.json: not the config\.json of a decoder"):
        shape_of(parse(Model, {"source": {"kind": "folder", "path": str(tmp_path)}}, "t").source, "models.m")

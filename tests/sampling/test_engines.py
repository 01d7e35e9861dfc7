"""Every engine against transformers, and the promises every engine makes.

vLLM has an environment of its own: test_vllm.py runs this file there with TOKENCREDIT_VLLM set, and then it is the one.
"""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

from tests.sampling.models import (
    FAMILIES,
    PROMPTS,
    VLLM,
    VLLM_SHAPE,
    VOCAB,
    build,
    forced_logprobs,
    generate_greedy,
)
from tokencredit.sampling import Completion, Engine, Params, Request, make_engine
from tokencredit.study.errors import UserError

KINDS = ["vllm"] if os.environ.get("TOKENCREDIT_VLLM") else ["fast", "hf"]
ours = pytest.mark.skipif(KINDS == ["vllm"], reason="of our own engines")
ATOL = 3e-5 if KINDS == ["vllm"] else 1e-5  # nats, float32; vLLM's matrix products round otherwise
_built: dict[str, Any] = {}
_started: dict[str, Engine] = {}


def model_of(name: str) -> Any:
    if name not in _built:
        _built[name] = build(name, **VLLM_SHAPE) if KINDS == ["vllm"] else build(name)
    return _built[name]


def engine_of(kind: str, name: str = "qwen3-gqa") -> Engine:
    if kind != "vllm":
        return make_engine(model_of(name), kind=kind)
    if name not in _started:  # one start takes seconds
        _started[name] = make_engine(model_of(name), kind=VLLM)
    return _started[name]


def requests(prompts: list[tuple[int, ...]] = PROMPTS, first_seed: int = 0) -> list[Request]:
    return [Request(p, first_seed + i) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_transformers_generate(kind: str, name: str) -> None:
    found = engine_of(kind, name).generate(requests(), Params(max_tokens=20, temperature=0))
    assert [list(c.tokens) for c in found] == [generate_greedy(model_of(name), p, 20) for p in PROMPTS]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.9)])
def test_logprobs_are_those_of_a_forward_pass(kind: str, name: str, temperature: float, top_p: float) -> None:
    suppress = (0, 40, 299)
    params = Params(max_tokens=15, temperature=temperature, top_p=top_p, suppress=suppress)
    for prompt, found in zip(PROMPTS, engine_of(kind, name).generate(requests(), params), strict=True):
        expected = forced_logprobs(model_of(name), prompt, found.tokens, temperature, suppress)
        if kind == "vllm" and top_p < 1:  # it has them after top-p only
            expected = torch.full_like(expected, math.nan)
        torch.testing.assert_close(torch.tensor(found.logprobs).double(), expected, rtol=0, atol=ATOL, equal_nan=True)
        assert not set(found.tokens) & set(suppress)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_logprobs_are_at_temperature_one(kind: str) -> None:
    found = engine_of(kind).generate(requests(), Params(max_tokens=5, temperature=0))[1]
    expected = forced_logprobs(model_of("qwen3-gqa"), PROMPTS[1], found.tokens, 1.0)
    torch.testing.assert_close(torch.tensor(found.logprobs).double(), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("kind", KINDS)
def test_every_eos_id_ends_a_response(kind: str) -> None:
    engine = engine_of(kind)
    eos = tuple(range(3, VOCAB, 9))
    free = engine.generate(requests(PROMPTS * 5), Params(max_tokens=25))
    ended = engine.generate(requests(PROMPTS * 5), Params(max_tokens=25, eos=eos))
    ends = set()
    for long, short in zip(free, ended, strict=True):
        stop = next((i for i, token in enumerate(long.tokens) if token in eos), None)
        assert short.tokens == long.tokens[: len(long.tokens) if stop is None else stop + 1]
        assert short.finish == ("length" if stop is None else "stop")
        ends |= {long.tokens[stop]} if stop is not None else set()
    assert len(ends) > 2
    assert {c.finish for c in free} == {"length"}
    assert len({len(c.tokens) for c in ended}) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_last_token_may_be_eos(kind: str) -> None:
    engine = engine_of(kind)
    last = engine.generate(requests(PROMPTS[:1]), Params(max_tokens=4))[0].tokens[-1]
    assert engine.generate(requests(PROMPTS[:1]), Params(max_tokens=4, eos=(last,)))[0].finish == "stop"


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_decide(kind: str) -> None:
    engine, params = engine_of(kind), Params(max_tokens=12)
    first = engine.generate(requests(), params)
    assert engine.generate(requests(), params) == first
    other = engine.generate(requests(first_seed=100), params)
    assert all(a.tokens != b.tokens for a, b in zip(first, other, strict=True))
    many = engine.generate(requests([PROMPTS[0]] * 40), params)
    assert len({c.tokens for c in many}) == 40


def same(a: list[Completion], b: list[Completion]) -> None:
    assert [(c.tokens, c.finish) for c in a] == [(c.tokens, c.finish) for c in b]
    for x, y in zip(a, b, strict=True):
        assert x.logprobs == pytest.approx(y.logprobs, abs=ATOL, nan_ok=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_sample_does_not_depend_on_its_neighbours(kind: str, top_p: float) -> None:
    engine: Any = engine_of(kind)
    params = Params(max_tokens=20, top_p=top_p, eos=(3, 30, 77, 130, 200, 201, 202, 203))
    asked = requests(PROMPTS * 4)
    together = engine.generate(asked, params)
    same([engine.generate([r], params)[0] for r in asked], together)
    same(engine.generate(asked[::-1], params)[::-1], together)
    for rows in () if kind == "vllm" else (1, 3, 7):
        engine.max_rows = rows  # rows are refilled as others finish
        same(engine.generate(asked, params), together)


@ours
def test_engines_agree() -> None:
    params = Params(max_tokens=20, temperature=0.8, top_p=0.95, eos=(3, 30, 77))
    same(engine_of("hf").generate(requests(), params), engine_of("fast").generate(requests(), params))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_refused(kind: str) -> None:
    engine = engine_of(kind)
    assert engine.generate([], Params(max_tokens=3)) == []
    with pytest.raises(UserError, match="no tokens"):
        engine.generate([Request((), 0)], Params(max_tokens=3))
    with pytest.raises(UserError, match="tokenizer"):
        engine.generate([Request((VOCAB,), 0)], Params(max_tokens=3))
    for wrong in ({"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}):
        with pytest.raises(UserError):
            Params(**{"max_tokens": 3, **wrong})


@pytest.mark.parametrize("kind", KINDS)
def test_non_finite_weights_stop_sampling(kind: str) -> None:
    vllm = kind == "vllm"
    engine_model = build("qwen3-gqa", seed=5, **(VLLM_SHAPE if vllm else {}))
    engine = make_engine(engine_model, kind=VLLM if vllm else kind)
    with torch.no_grad():
        engine_model.lm_head.weight[7] = torch.nan

    def hand_over_and_sample() -> None:
        engine.update(engine_model)
        engine.generate(requests(), Params(max_tokens=3))

    with pytest.raises(FloatingPointError):
        hand_over_and_sample()


@ours
def test_fresh_memory_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked columns of the cache must hold numbers: whatever memory held before, results are the same."""
    expected = engine_of("fast").generate(requests(), Params(max_tokens=10))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(torch.nan))
    assert engine_of("fast").generate(requests(), Params(max_tokens=10)) == expected


@ours
def test_a_prompt_is_run_once_for_all_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = engine_of("fast")
    run: list[tuple[int, ...]] = []
    prefill = engine.decoder.prefill

    def counted(prompts: Any) -> Any:
        run.extend(prompts)
        return prefill(prompts)

    monkeypatch.setattr(engine.decoder, "prefill", counted)
    engine.generate(requests(PROMPTS * 8), Params(max_tokens=6, eos=(3, 30, 77)))
    assert sorted(run) == sorted(set(PROMPTS))

"""Filtered decoding against a reference that recomputes everything, one response at a time, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.sampling.models import PROMPTS, VOCAB, build
from tests.sampling.test_draw import fits
from tokencredit.sampling import Params, Request, Unsupported, make_engine
from tokencredit.sampling.draw import noise
from tokencredit.sampling.filtered import Filter, FilteredCompletion, FilteredRequest, generate_filtered
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive

EOS = (3, 30, 77, 130, 200, 201, 202, 203)
_built: dict[str, Any] = {}


def model_of(name: str = "qwen3-gqa") -> Any:
    if name not in _built:
        _built[name] = build(name)
    return _built[name]


def perturbed(prompt: tuple[int, ...], k: int) -> tuple[int, ...]:
    return (*prompt[:1], 11 * k + 20, *prompt[1:], *range(90, 90 + k % 3))


def requests(kinds: int = 4, samples: int = 3, first_seed: int = 0) -> list[FilteredRequest]:
    asked = [p for p in PROMPTS for _ in range(samples)]
    return [
        FilteredRequest((p, *(perturbed(p, k) for k in range(1, kinds + 1))), first_seed + i)
        for i, p in enumerate(asked)
    ]


@torch.no_grad()
def distributions(model: Any, prompts: tuple[tuple[int, ...], ...], tokens: list[int]) -> np.ndarray:
    """[W, V] next-token probabilities by one plain forward pass per prompt."""
    rows = [model(input_ids=torch.tensor([[*p, *tokens]]), use_cache=False).logits[0, -1] for p in prompts]
    return torch.stack(rows).double().softmax(-1).numpy()


def masked(p: np.ndarray, cap: float, eos: tuple[int, ...]) -> set[int]:
    drift = (abs(p[1:] - p[0]) / ((p[1:] + p[0]) / 2)).mean(0)
    out, mass = set(), 0.0
    for v in sorted(range(len(drift)), key=lambda v: (-drift[v], v)):
        if v in eos:
            continue
        mass += p[0, v]
        if mass > cap:
            break
        out.add(v)
    return out


def by_chance(p: np.ndarray, budget: float, keys: np.ndarray, eos: tuple[int, ...]) -> set[int]:
    out: set[int] = set()
    for v in np.argsort(keys).tolist():
        if v not in eos and p[0, v] <= budget + 1e-9:
            out.add(v)
            budget -= p[0, v]
    return out


def reference(model: Any, request: FilteredRequest, rule: Filter) -> tuple[list[int], list[tuple[int, int]], float]:
    """Tokens, rejected proposals, and mean masked probability."""
    tokens: list[int] = []
    rejected, mass = [], 0.0
    first = noise(request.seed, rule.max_tokens)
    second = noise(derive(request.seed, "filtered", "second"), rule.max_tokens)
    for t in range(rule.max_tokens):
        p = distributions(model, request.prompts, tokens)
        mask = masked(p, rule.cap, rule.eos)
        if rule.order == "random":
            keys = noise(derive(request.seed, "filtered", "order", t), p.shape[1])
            mask = by_chance(p, sum(p[0, v] for v in mask), keys, rule.eos)
        mass += sum(p[0, v] for v in mask)
        token = int(np.searchsorted(p[0].cumsum(), first[t], side="right"))
        if token in mask:
            rejected.append((t, token))
            rest = p[0].copy()
            rest[list(mask)] = 0.0
            token = int(np.searchsorted(rest.cumsum() / rest.sum(), second[t], side="right"))
        tokens.append(token)
        if token in rule.eos:
            break
    return tokens, rejected, mass / len(tokens)


@pytest.mark.parametrize("order", ["drift", "random"])
@pytest.mark.parametrize(
    ("name", "kinds", "cap"), [("qwen3-gqa", 4, 0.8), ("llama-gqa-bias", 1, 0.5), ("qwen2-tied", 2, 0.95)]
)
def test_tokens_are_those_of_recomputing_everything(name: str, kinds: int, cap: float, order: Any) -> None:
    asked = requests(kinds, samples=2)
    rule = Filter(12, cap, order, EOS)
    found = generate_filtered(make_engine(model_of(name), kind="fast"), asked, rule)
    assert sum(len(c.rejected) for c in found) > 20
    for request, completion in zip(asked, found, strict=True):
        tokens, rejected, mass = reference(model_of(name), request, rule)
        assert (list(completion.tokens), list(completion.rejected)) == (tokens, rejected)
        assert completion.masked_mass == pytest.approx(mass, abs=1e-5)
        assert completion.finish == ("stop" if tokens[-1] in EOS else "length")


@pytest.mark.parametrize("kind", ["fast", "hf"])
def test_cap_zero_is_plain_sampling(kind: str) -> None:
    engine = make_engine(model_of(), kind=kind)
    asked = requests()
    plain = engine.generate([Request(r.prompts[0], r.seed) for r in asked], Params(15, eos=EOS))
    found = generate_filtered(engine, asked, Filter(15, 0.0, eos=EOS))
    assert [(c.tokens, c.finish) for c in found] == [(c.tokens, c.finish) for c in plain]
    assert all(c.rejected == () and c.masked_mass == 0 and c.entropy == pytest.approx(c.clean_entropy) for c in found)


def test_a_response_is_plain_until_its_first_rejection() -> None:
    engine, asked = make_engine(model_of(), kind="fast"), requests()
    plain = engine.generate([Request(r.prompts[0], r.seed) for r in asked], Params(15, eos=EOS))
    for a, b in zip(plain, generate_filtered(engine, asked, Filter(15, 0.3, eos=EOS)), strict=True):
        until = b.rejected[0][0] if b.rejected else len(b.tokens)
        assert a.tokens[:until] == b.tokens[:until]
        if b.rejected:
            assert a.tokens[until] == b.rejected[0][1] != b.tokens[until]


def same(a: list[FilteredCompletion], b: list[FilteredCompletion]) -> None:
    assert [(c.tokens, c.finish, c.rejected) for c in a] == [(c.tokens, c.finish, c.rejected) for c in b]
    for x, y in zip(a, b, strict=True):
        for name in ("budget", "masked_mass", "clean_entropy", "entropy", "tempered"):
            assert getattr(x, name) == pytest.approx(getattr(y, name), abs=1e-3)


@pytest.mark.parametrize("order", ["drift", "random"])
def test_a_response_does_not_depend_on_its_neighbours(order: Any) -> None:
    engine: Any = make_engine(model_of(), kind="fast")
    rule = Filter(12, 0.6, order, EOS, (0.5, 1.0))
    asked = [*requests(4, 2), *requests(2, 1, 50)]  # problems with other numbers of kinds beside
    together = generate_filtered(engine, asked, rule)
    assert generate_filtered(engine, asked, rule) == together
    same([generate_filtered(engine, [r], rule)[0] for r in asked], together)
    same(generate_filtered(engine, asked[::-1], rule)[::-1], together)
    for rows in (1, 17):
        engine.max_rows = rows  # responses come in as others finish
        same(generate_filtered(engine, asked, rule), together)


def test_both_kinds_of_lanes_agree() -> None:
    rule = Filter(12, 0.7, "drift", EOS)
    fast, other = (make_engine(model_of(), kind=kind) for kind in ("fast", "hf"))
    other.max_rows = 23  # type: ignore[attr-defined]
    same(generate_filtered(other, requests(), rule), generate_filtered(fast, requests(), rule))


def test_what_is_drawn_follows_the_renormalised_distribution() -> None:
    """First tokens of one prompt; its likeliest one is an EOS id and must stay."""
    prompts, cap, count = requests(3)[0].prompts, 0.6, 15_000
    p = distributions(model_of(), prompts, [])
    eos = (int(p[0].argmax()),)
    asked = [FilteredRequest(prompts, s) for s in range(count)]
    found = generate_filtered(make_engine(model_of(), kind="fast"), asked, Filter(1, cap, "drift", eos))
    mask = masked(p, cap, eos)
    assert mask
    assert not mask & set(eos)
    assert sum(p[0, v] for v in mask) <= cap
    tokens = torch.tensor([c.tokens[0] for c in found])
    left = np.array([0.0 if v in mask else p[0, v] for v in range(VOCAB)])
    assert fits(tokens, left / left.sum())
    share = sum(len(c.rejected) for c in found) / count
    assert share == pytest.approx(sum(p[0, v] for v in mask), abs=4 * 0.5 / count**0.5)


def test_random_masks_differ_between_samples_and_keep_to_the_budget() -> None:
    asked = [FilteredRequest(requests(3)[0].prompts, s) for s in range(200)]
    found = generate_filtered(make_engine(model_of(), kind="fast"), asked, Filter(1, 0.6, "random"))
    assert all(0 < c.masked_mass <= c.budget + 1e-6 for c in found)
    assert len({c.budget for c in found}) < 5 < len({c.masked_mass for c in found})


def test_finished_responses_and_shared_prompts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = make_engine(model_of(), kind="fast")
    run: list[tuple[int, ...]] = []
    stepped: list[int] = []
    prefill, step = engine.decoder.prefill, engine.decoder.step
    monkeypatch.setattr(engine.decoder, "prefill", lambda prompts: (run.extend(prompts), prefill(prompts))[1])
    monkeypatch.setattr(
        engine.decoder, "step", lambda tokens, view: (stepped.append(len(tokens)), step(tokens, view))[1]
    )
    asked, told = requests(), []
    found = generate_filtered(engine, asked, Filter(12, 0.5, eos=EOS), told.append)
    assert sorted(run) == sorted({p for r in asked for p in r.prompts})
    assert sum(stepped) == 5 * sum(len(c.tokens) - 1 for c in found)
    assert sum(told) == len(asked)


def test_a_cap_near_one_leaves_something_to_draw() -> None:
    found = generate_filtered(make_engine(model_of(), kind="fast"), requests(), Filter(8, 1 - 2**-40))
    assert all(len(c.tokens) == 8 and c.masked_mass < 1 and c.entropy >= 0 for c in found)


def test_bad_input_is_refused() -> None:
    engine: Any = make_engine(model_of(), kind="fast")
    assert generate_filtered(engine, [], Filter(3)) == []
    with pytest.raises(UserError, match="no perturbed prompt"):
        generate_filtered(engine, [FilteredRequest(PROMPTS[:1], 0)], Filter(3))
    with pytest.raises(UserError, match="tokenizer"):
        generate_filtered(engine, [FilteredRequest(((1,), (VOCAB,)), 0)], Filter(3))
    for wrong in ({"max_tokens": 0}, {"cap": 1.0}, {"cap": -0.1}, {"temperatures": (0.0,)}):
        with pytest.raises(UserError):
            Filter(**{"max_tokens": 3, **wrong})


def test_engines_that_cannot_do_it_say_so() -> None:
    class Bare:
        pass

    asked = requests(1, 1)
    with pytest.raises(Unsupported, match="Bare"):
        generate_filtered(Bare(), asked, Filter(3))  # type: ignore[arg-type]
    engine: Any = make_engine(model_of(), kind="hf")
    engine.padded = False  # as for a recurrent model
    with pytest.raises(Unsupported, match="padding"):
        generate_filtered(engine, asked, Filter(3))


def test_non_finite_weights_stop_sampling() -> None:
    model = build("qwen3-gqa", seed=5)
    engine = make_engine(model, kind="fast")
    with torch.no_grad():
        model.lm_head.weight[7] = torch.nan
    engine.update(model)
    with pytest.raises(FloatingPointError):
        generate_filtered(engine, requests(1, 1), Filter(3))

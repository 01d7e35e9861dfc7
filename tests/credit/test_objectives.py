"""Objectives, the reduction, and credits that act inside an update: identities and extremes for every method."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.credit.test_properties import rollout
from tokencredit.credit import (
    Signals,
    Span,
    reduce,
    selected_tokens,
    token_advantages,
    token_shares,
    update_advantages,
    update_losses,
)
from tokencredit.credit.future import future_kl
from tokencredit.credit.objective import token_clip
from tokencredit.study.methods import (
    EntropyCredit,
    FutureCredit,
    MarginCredit,
    Method,
    OracleCredit,
    SemifactualCredit,
    SequenceClip,
    SoftGate,
    SpanCredit,
    TokenClip,
)

F = torch.float64
MARGIN = MarginCredit(kind="margin")
METHODS = {
    "grpo": Method(),
    "dapo": Method(objective=TokenClip(dual=None)),
    "dr_grpo": Method(objective=TokenClip(low=0.2, high=0.2, dual=None), reduction="constant"),
    "gspo": Method(objective=SequenceClip(kind="sequence_clip")),
    "sapo": Method(objective=SoftGate(kind="soft_gate")),
    "fipo": Method(credit=(FutureCredit(kind="future_kl"),)),
    "entropy": Method(credit=(EntropyCredit(kind="entropy"),)),
    "mcpo": Method(credit=(MARGIN,)),
    "mcpo_gspo": Method(credit=(MARGIN,), objective=SequenceClip(kind="sequence_clip")),
    "mcpo_scapo": Method(credit=(MARGIN, SemifactualCredit(kind="semifactual"))),
    "cf_grpo": Method(credit=(SpanCredit(kind="spans"),)),
    "oracle": Method(credit=(OracleCredit(kind="oracle"),)),
    "oracle_weight": Method(credit=(OracleCredit(kind="oracle", form="weight"),)),
}


def signals_for(seed: int = 0) -> tuple[Signals, torch.Tensor]:
    """A random rollout with every signal a method may ask for."""
    s, rewards = rollout(seed)
    g = torch.Generator().manual_seed(seed + 1)
    lengths = s.mask.sum(-1).tolist()
    spans = [[Span(0, max(1, n // 2), 0.7), Span(n // 2, n, -0.1)] if n > 2 else [] for n in lengths]
    effect = torch.randn(s.mask.shape, generator=g, dtype=F) * 0.2
    entropy = torch.rand(s.mask.shape, generator=g, dtype=F)
    answers = [n if i % 3 else None for i, n in enumerate(lengths)]
    return dataclasses.replace(s, spans=spans, answer_start=answers, effect=effect, entropy=entropy), rewards


def gradient(method: Method, s: Signals, rewards: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, float]:
    new = new.clone().requires_grad_(True)
    tokens = token_advantages(method, rewards, s)[1]
    chosen = selected_tokens(method, s)[0]
    losses, _ = update_losses(method, new, s.logprob, tokens, s.mask)
    loss = reduce(losses, chosen, token_shares(chosen, method.reduction, 9))
    loss.backward()
    assert new.grad is not None
    return new.grad, loss.item()


@pytest.mark.parametrize("name", ["gspo", "sapo", "fipo", "dapo"])
def test_at_ratio_one_the_gradient_is_grpos(name: str) -> None:
    s, rewards = signals_for()
    want, _ = gradient(Method(), s, rewards, s.logprob)
    got, _ = gradient(METHODS[name], s, rewards, s.logprob)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)
    assert want.abs().sum() > 0


@pytest.mark.parametrize("name", METHODS)
def test_padding_is_never_read(name: str) -> None:
    """Garbage at padding of every table changes no token's loss or gradient."""
    s, rewards = signals_for(3)
    new = s.logprob + 0.1 * torch.sin(torch.arange(s.mask.numel(), dtype=F)).view(s.mask.shape)
    clean, loss = gradient(METHODS[name], s, rewards, new)

    def spoil(x: torch.Tensor, value: float) -> torch.Tensor:
        return torch.where(s.mask, x, value)

    assert s.effect is not None and s.perturbed is not None
    spoilt = dataclasses.replace(
        s, logprob=spoil(s.logprob, -7.0), margin=spoil(s.margin, 0.0), entropy=spoil(s.entropy, 9.0),
        effect=spoil(s.effect, 5.0), perturbed=torch.where(s.mask, s.perturbed, -1.0),
    )  # fmt: skip
    got, other = gradient(METHODS[name], spoilt, rewards, spoil(new, 2.0))
    assert other == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(got[s.mask], clean[s.mask], rtol=1e-12, atol=1e-15)
    assert (got[~s.mask] == 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_step_without_a_token_gives_zero(name: str) -> None:
    s, rewards = signals_for(1)
    empty = dataclasses.replace(s, mask=torch.zeros_like(s.mask), spans=[[] for _ in s.mask], answer_start=[None] * 12)
    got, loss = gradient(METHODS[name], empty, rewards, s.logprob)
    assert loss == 0
    assert (got == 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_extreme_ratios_stay_finite(name: str) -> None:
    s, rewards = signals_for(2)
    for shift in (-600.0, 600.0):
        got, loss = gradient(METHODS[name], s, rewards, s.logprob + shift)
        assert torch.isfinite(got).all()
        assert torch.isfinite(torch.tensor(loss))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), cut=st.integers(1, 11), name=st.sampled_from(sorted(METHODS)))
def test_splitting_a_step_changes_nothing(seed: int, cut: int, name: str) -> None:
    """Micro-batches add up to the whole step's loss under every reduction."""
    s, rewards = signals_for(seed)
    method = METHODS[name]
    tokens = token_advantages(method, rewards, s)[1]
    chosen = selected_tokens(method, s)[0]
    shares = token_shares(chosen, method.reduction, 9)
    new = s.logprob + 0.3
    whole = reduce(update_losses(method, new, s.logprob, tokens, s.mask)[0], chosen, shares)
    parts = sum(
        reduce(update_losses(method, new[r], s.logprob[r], tokens[r], s.mask[r])[0], chosen[r], shares[r])
        for r in (slice(0, cut), slice(cut, None))
    )
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)


def test_reductions_written_out() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    loss = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], dtype=F)
    for kind, want in (("token_mean", 16 / 4), ("sequence_mean", (2 + 10) / 2), ("constant", 16 / (2 * 5))):
        assert reduce(loss, mask, token_shares(mask, kind, 5)).item() == pytest.approx(want)  # type: ignore[arg-type]


def test_weighting_the_advantage_is_weighting_the_loss() -> None:
    g = torch.Generator().manual_seed(0)
    new, old, a = (torch.randn(5, 10, generator=g, dtype=F) for _ in range(3))
    w, mask = torch.rand(5, 10, generator=g, dtype=F) * 3, torch.ones(5, 10, dtype=torch.bool)
    for objective in (METHODS["grpo"], METHODS["gspo"], METHODS["sapo"]):
        plain, _ = update_losses(objective, new, old, a, mask)
        weighted, _ = update_losses(objective, new, old, a * w, mask)
        torch.testing.assert_close(weighted, plain * w)


def test_gspo_clips_whole_responses_and_keeps_each_tokens_credit() -> None:
    """Token advantages of mean A under one sequence ratio: the gradient of token t is -s A_t / T."""
    mask = torch.ones(1, 4, dtype=torch.bool)
    old = torch.full((1, 4), -1.0, dtype=F)
    a = torch.tensor([[0.2, 0.4, 0.6, 0.8]], dtype=F)
    for shift, binds in ((1e-4, False), (1e-2, True)):
        new = (old + shift).requires_grad_(True)
        losses, events = update_losses(METHODS["gspo"], new, old, a, mask)
        losses.mean().backward()
        want = torch.zeros(1, 4, dtype=F) if binds else -a * torch.tensor(shift, dtype=F).exp() / 4
        torch.testing.assert_close(new.grad, want)
        assert bool(events["clipped_high"].all()) is binds


def test_sapo_gate_and_its_slope() -> None:
    """f(1) = 2 / tau, and the gradient's weight is 4 p (1 - p) at p = sigmoid(tau (r - 1))."""
    mask = torch.ones(1, 2, dtype=torch.bool)
    old = torch.zeros(1, 2, dtype=F)
    a = torch.tensor([[1.0, -1.0]], dtype=F)
    losses, _ = update_losses(METHODS["sapo"], old, old, a, mask)
    torch.testing.assert_close(losses, torch.tensor([[-2.0, 1.9047619047619047]], dtype=F))
    new = torch.tensor([[0.4, 0.4]], dtype=F).requires_grad_(True)
    losses, _ = update_losses(METHODS["sapo"], new, old, a, mask)
    losses.sum().backward()
    r = torch.tensor(0.4, dtype=F).exp()
    for place, (tau, sign) in enumerate(((1.0, 1.0), (1.05, -1.0))):
        p = 1 / (1 + torch.exp(-tau * (r - 1)))
        assert new.grad[0, place].item() == pytest.approx(-sign * (4 * p * (1 - p) * r).item(), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), half_life=st.sampled_from([0.5, 4.0, 32.0]))
def test_future_kl_is_its_recurrence(seed: int, half_life: float) -> None:
    g = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 600, (1,), generator=g))
    new, old = (-torch.rand(2, length, generator=g, dtype=F) * 6 for _ in range(2))
    mask = torch.arange(length)[None] < torch.tensor([[length], [max(1, length // 2)]])
    got = future_kl(new, old, mask, FutureCredit(kind="future_kl", half_life=half_life))
    gamma = 0.5 ** (1 / half_life)
    for row in range(2):
        f = 0.0
        for t in reversed(range(int(mask[row].sum()))):
            d = (new[row, t] - old[row, t]).item()
            f = (d if d <= torch.tensor(10.0).log().item() else 0.0) + gamma * f
            assert got[row, t].item() == pytest.approx(f, rel=1e-9, abs=1e-12)
    assert (got[~mask] == 0).all()


def test_future_factor_carries_no_gradient() -> None:
    new = torch.tensor([[-0.5, -0.6]], dtype=F, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    a, _ = update_advantages(METHODS["fipo"], new, torch.full((1, 2), -0.9, dtype=F), torch.ones(1, 2, dtype=F), mask)
    assert not a.requires_grad
    assert (a > 1).all()


def test_equal_drops_and_missing_boxes_are_grpo() -> None:
    s, rewards = signals_for(4)
    lengths = s.mask.sum(-1).tolist()
    plain = token_advantages(Method(), rewards, s)[1]
    equal = dataclasses.replace(s, spans=[[Span(0, n, 1.0)] for n in lengths], answer_start=lengths)
    none = dataclasses.replace(s, answer_start=[None] * len(lengths))
    for changed in (equal, none):
        assert torch.equal(token_advantages(METHODS["cf_grpo"], rewards, changed)[1][s.mask], plain[s.mask])


def test_answer_tokens_weigh_one_and_a_half_before_the_mean_is_restored() -> None:
    s, rewards = signals_for(4)
    row = int(s.mask.sum(-1).argmax())
    length = int(s.mask[row].sum())
    spans = [[] for _ in s.mask]
    spans[row] = [Span(0, 1, 0.4)]
    answers: list[int | None] = [None] * len(s.mask)
    answers[row] = length - 2
    one = dataclasses.replace(s, spans=spans, answer_start=answers, groups=torch.arange(len(s.mask)) // 4)
    advantage, tokens, _ = token_advantages(METHODS["cf_grpo"], rewards, one)
    if advantage[row] == 0:
        pytest.skip("the longest response has no advantage under this seed")
    raw = torch.tensor([4.0] + [0.5 + 3.5 * 0.5] * (length - 3) + [1.5, 1.5], dtype=F)
    torch.testing.assert_close(tokens[row, :length] / advantage[row], raw / raw.mean())


@pytest.mark.parametrize("name", ["oracle", "oracle_weight"])
def test_oracle_keeps_the_mean(name: str) -> None:
    """ "effect": mean_t A~ = (R - V_0) / (std + eps), sum of effects R - V_0. "weight": mean_t A~ = A_i, no sign flips."""
    s, rewards = signals_for(5)
    rewards[:4] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    effect = torch.where(s.mask, s.effect, 0.0)
    rest = rewards - 0.4 - effect[:, 1:].sum(-1)  # so that the effects of a response add up to R - 0.4
    effect[:, 0] = rest
    s = dataclasses.replace(s, effect=effect)
    advantage, tokens, _ = token_advantages(METHODS[name], rewards, s)
    mean = torch.where(s.mask, tokens, 0.0).sum(-1) / s.mask.sum(-1)
    for group in range(3):
        rows = s.groups == group
        if rewards[rows].std() == 0:
            assert (tokens[rows][s.mask[rows]] == 0).all()
        elif name == "oracle":
            torch.testing.assert_close(mean[rows], (rewards[rows] - 0.4) / (rewards[rows].std() + 1e-6))
        else:
            torch.testing.assert_close(mean[rows], advantage[rows])
            assert (tokens[rows] * advantage[rows, None] >= 0)[s.mask[rows]].all()


def test_unmeasured_response_keeps_its_advantage() -> None:
    s, rewards = signals_for(5)
    effect = s.effect.clone()
    effect[6] = torch.nan
    s = dataclasses.replace(s, effect=effect)
    advantage, tokens, _ = token_advantages(METHODS["oracle"], rewards, s)
    assert (tokens[6][s.mask[6]] == advantage[6]).all()
    assert torch.isfinite(tokens[s.mask]).all()


def test_entropy_in_the_margins_place() -> None:
    """Thresholds in nats: no credit above 1 at or below `low`, all of it at or above `high`."""
    s, rewards = signals_for(6)
    s = dataclasses.replace(s, mask=torch.ones(12, 3, dtype=torch.bool), entropy=torch.tensor([[0.1, 0.6, 1.1]]).repeat(12, 1),
                            logprob=s.logprob[:, :3], margin=s.margin[:, :3], perturbed=None, effect=None)  # fmt: skip
    credit = MarginCredit(kind="margin", signal="entropy", low=0.2, high=1.0)
    advantage, tokens, _ = token_advantages(Method(credit=(credit,)), rewards, s)
    row = int(advantage.abs().argmax())
    want = torch.tensor([1.0, 1.5, 2.0], dtype=F)
    torch.testing.assert_close(tokens[row] / advantage[row], want / 1.5, rtol=1e-6, atol=1e-6)


def test_extreme_ratio_of_the_clip_alone() -> None:
    new = torch.tensor([[0.0, 0.0]], requires_grad=True)
    old, a, mask = torch.tensor([[-500.0] * 2]), torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool)
    loss, _ = token_clip(new, old, a, mask, TokenClip(dual=None))
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(new.grad).all()

"""Properties the methods must have on any rollout."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencredit.credit import Signals, group_advantage, reduce, token_advantages, token_shares, update_losses
from tokencredit.credit.margin import hesitation, weights
from tokencredit.credit.semifactual import drift, stability
from tokencredit.study.methods import Advantage, MarginCredit, Method, SemifactualCredit

F = torch.float64


def rollout(seed: int, groups: int = 3, size: int = 4, width: int = 7, kinds: int = 4) -> tuple[Signals, torch.Tensor]:
    """(signals, rewards) of a random rollout with ragged lengths; one group has equal rewards."""
    g = torch.Generator().manual_seed(seed)
    n = groups * size
    lengths = torch.randint(1, width + 1, (n,), generator=g)
    mask = torch.arange(width)[None] < lengths[:, None]
    old = -torch.rand(n, width, generator=g, dtype=F) * 3
    perturbed = old + torch.randn(kinds, n, width, generator=g, dtype=F) * 0.5
    rewards = torch.randint(2, (n,), generator=g).to(F)
    rewards[:size] = 1.0
    margin = torch.rand(n, width, generator=g, dtype=F)
    uid = torch.arange(groups).repeat_interleave(size)
    return Signals(mask, uid, old, margin, torch.zeros_like(old), perturbed, 1, tuple(range(n))), rewards


def margin_method(**more: object) -> Method:
    return Method(credit=(MarginCredit(kind="margin", **more),))  # type: ignore[arg-type]


def semifactual_method(**more: object) -> Method:
    return Method(credit=(SemifactualCredit(kind="semifactual", **more),))  # type: ignore[arg-type]


FORMS = [
    {"form": form, "control": control}
    for form in ("ratio", "additive", "proportional")
    for control in ("none", "shuffled", "inverted", "uniform")
]


@pytest.mark.parametrize("options", FORMS, ids=lambda o: f"{o['form']}-{o['control']}")
def test_margin_weights_have_mean_one_and_never_flip_a_sign(options: dict[str, str]) -> None:
    signals, rewards = rollout(1)
    settings_ = MarginCredit(kind="margin", **options)  # type: ignore[arg-type]
    w, _ = weights(signals, settings_)
    mean = w.sum(-1) / signals.mask.sum(-1)
    torch.testing.assert_close(mean, torch.ones_like(mean), rtol=1e-12, atol=1e-12)
    assert (w >= 0).all()
    assert (w[~signals.mask] == 0).all()
    advantage, tokens, _ = token_advantages(margin_method(**options), rewards, signals)
    assert (tokens * advantage[:, None] >= 0)[signals.mask].all()
    assert (tokens[:4] == 0).all(), "a group with equal rewards stays at 0"


def test_proportional_form_respects_its_cap() -> None:
    score = torch.tensor([[0.9] + [0.0] * 19, [0.0] * 20], dtype=F)
    signals = dataclasses.replace(
        rollout(0, 1, 2, 20)[0], mask=torch.ones(2, 20, dtype=torch.bool), margin=0.8 - 0.6 * score
    )
    w, _ = weights(signals, MarginCredit(kind="margin", form="proportional", cap=4.0))
    assert w[0].max().item() == pytest.approx(4.0)
    assert w[0].mean().item() == pytest.approx(1.0)
    assert (w[1] == 1).all(), "no hesitant token: uniform"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), extra=st.integers(1, 5))
def test_padding_and_neighbours_change_nothing(seed: int, extra: int) -> None:
    """Wider padding with garbage, and the response alone in its batch, give the same weights and corrections."""
    signals, rewards = rollout(seed)
    n, width = signals.mask.shape

    def widen(x: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.cat([x, torch.full((*x.shape[:-1], extra), fill, dtype=x.dtype)], -1)

    assert signals.perturbed is not None
    wide = dataclasses.replace(
        signals,
        mask=widen(signals.mask, 0),
        logprob=widen(signals.logprob, -9.0),
        margin=widen(signals.margin, 0.01),
        entropy=widen(signals.entropy, 3.0),
        perturbed=widen(signals.perturbed, -1.0),
    )
    for method in (margin_method(), semifactual_method(), margin_method(control="shuffled")):
        a, b = (token_advantages(method, rewards, s)[1] for s in (signals, wide))
        torch.testing.assert_close(b[:, :width][signals.mask], a[signals.mask], rtol=1e-12, atol=1e-12)
    row = int(torch.randint(n, (1,), generator=torch.Generator().manual_seed(seed)))
    alone = Signals(
        signals.mask[[row]],
        torch.zeros(1, dtype=torch.long),
        signals.logprob[[row]],
        signals.margin[[row]],
        signals.entropy[[row]],
        row_seeds=(row,),
    )
    for control in ("none", "shuffled"):
        one = MarginCredit(kind="margin", control=control)
        torch.testing.assert_close(weights(alone, one)[0][0], weights(signals, one)[0][row], rtol=1e-12, atol=1e-12)


def test_equal_prompts_are_two_groups_and_permuted_rows_keep_their_advantage() -> None:
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0])
    a = group_advantage(rewards, torch.tensor([7, 7, 3, 3]), Advantage())
    assert a[0] == -a[1]
    assert (a[2:] == 0).all()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(group_advantage(rewards[order], torch.tensor([3, 7, 3, 7]), Advantage()), a[order])


def test_group_of_one_and_of_equal_rewards_give_zero_not_nan() -> None:
    assert group_advantage(torch.tensor([1.0]), torch.tensor([0]), Advantage()).tolist() == [0.0]
    assert group_advantage(torch.ones(3), torch.zeros(3, dtype=torch.long), Advantage()).tolist() == [0.0] * 3


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999))
def test_stability_is_standardised_per_group(seed: int) -> None:
    """mean(u) = 0, mean(u^2) <= 1, and mean(-u_minus) <= 1/2 over a group's valid tokens; A~ <= A_i."""
    signals, rewards = rollout(seed)
    assert signals.perturbed is not None
    u = stability(drift(signals.logprob, signals.perturbed), signals.mask, signals.groups, 1e-6)
    for group in range(3):
        values = u[signals.groups == group][signals.mask[signals.groups == group]]
        assert abs(values.mean().item()) < 1e-9
        assert values.square().mean().item() <= 1
        assert values.clamp(max=0).neg().mean().item() <= 0.5
    advantage, tokens, _ = token_advantages(semifactual_method(strength=0.3), rewards, signals)
    gap = (tokens - advantage[:, None])[signals.mask]
    assert (gap <= 0).all()
    assert (gap[u[signals.mask] >= 0] == 0).all()


def test_drift_is_symmetric_bounded_and_equals_its_probability_form() -> None:
    p0, pk = torch.tensor([0.9, 0.5, 1e-9, 0.3], dtype=F), torch.tensor([0.1, 0.5, 0.9, 0.31], dtype=F)
    d = drift(p0.log(), pk.log())
    torch.testing.assert_close(d, (p0 - pk).abs() / ((p0 + pk) / 2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(d, drift(pk.log(), p0.log()))
    assert drift(torch.tensor(-0.1), torch.tensor(-1e4)).item() == 2.0


def test_missing_kind_counts_for_nothing() -> None:
    """Where a problem lacks a kind, its group's u is that of the kinds it has."""
    signals, _ = rollout(5)
    assert signals.perturbed is not None
    d = drift(signals.logprob, signals.perturbed)
    lacking = d.clone()
    lacking[1, signals.groups == 2] = torch.nan
    u = stability(lacking, signals.mask, signals.groups, 1e-9)
    reduced = stability(d[[0, 2, 3]], signals.mask, signals.groups, 1e-9)
    whole = stability(d, signals.mask, signals.groups, 1e-9)
    third = signals.groups == 2
    torch.testing.assert_close(u[third], reduced[third], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(u[~third], whole[~third])


def test_zero_strength_is_grpo_bit_for_bit() -> None:
    signals, rewards = rollout(3)
    plain = token_advantages(Method(), rewards, signals)[1]
    for method in (margin_method(strength=0.0), semifactual_method(strength=0.0), margin_method(control="uniform")):
        assert torch.equal(token_advantages(method, rewards, signals)[1][signals.mask], plain[signals.mask])


def test_schedule_ends_at_its_last_step() -> None:
    signals, rewards = rollout(3)
    method = semifactual_method(steps=10)
    plain = token_advantages(Method(), rewards, signals)[1]
    at_ten = token_advantages(method, rewards, dataclasses.replace(signals, step=10))[1]
    after = token_advantages(method, rewards, dataclasses.replace(signals, step=11, perturbed=None))[1]
    assert not torch.equal(at_ten, plain)
    assert torch.equal(after, plain)


def test_credits_compose_in_order() -> None:
    signals, rewards = rollout(4)
    margin, semifactual = MarginCredit(kind="margin"), SemifactualCredit(kind="semifactual", strength=0.2)
    both = token_advantages(Method(credit=(margin, semifactual)), rewards, signals)[1]
    w = token_advantages(Method(credit=(margin,)), rewards, signals)[1]
    zero = torch.zeros_like(rewards)
    correction = token_advantages(Method(credit=(semifactual,)), zero, signals)[1]
    torch.testing.assert_close(both[signals.mask], (w + correction)[signals.mask], rtol=1e-12, atol=1e-12)


def test_one_sided_margin_credit_leaves_the_other_side_alone() -> None:
    signals, rewards = rollout(6)
    advantage, plain, _ = token_advantages(Method(), rewards, signals)
    full = token_advantages(margin_method(), rewards, signals)[1]
    positive = token_advantages(margin_method(where="positive"), rewards, signals)[1]
    up = advantage > 0
    assert torch.equal(positive[up], full[up])
    valid = signals.mask & ~up[:, None]
    assert torch.equal(positive[valid], plain[valid])


def test_hesitation_thresholds() -> None:
    got = hesitation(torch.tensor([0.0, 0.2, 0.5, 0.8, 1.0], dtype=F), 0.2, 0.8)
    torch.testing.assert_close(got, torch.tensor([1.0, 1.0, 0.5, 0.0, 0.0], dtype=F))


def test_gradient_gap_to_grpo_is_bounded() -> None:
    """SCAPO's gradient differs from GRPO's by at most strength x max ratio x B / 2 (B: bound of a token's slope)."""
    signals, rewards = rollout(8, groups=1, size=8)
    new0 = signals.logprob + 0.05
    gradients = []
    for method in (Method(), semifactual_method(strength=0.01)):
        new = new0.clone().requires_grad_(True)
        tokens = token_advantages(method, rewards, signals)[1]
        loss, _ = update_losses(method, new, signals.logprob, tokens, signals.mask)
        reduce(loss, signals.mask, token_shares(signals.mask, "token_mean", 7)).backward()
        gradients.append(new.grad)
    # Per-token slopes of log-probabilities with B = 1: the sum over tokens of the gaps.
    assert (gradients[0] - gradients[1]).abs().sum().item() <= 0.01 * float(torch.tensor(0.05).exp()) * 0.5 + 1e-12

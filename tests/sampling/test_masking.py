"""Which candidates are masked, against a search through every prefix in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencredit.sampling.masking import (
    candidate_drift,
    drift_mask,
    entropies,
    masked_mass,
    random_mask,
    tempered_entropies,
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, float, torch.Tensor]:
    """Weights that floats hold exactly, drifts with many ties, a dyadic cap and a set of protected ids."""
    vocab = draw(st.integers(1, 9))
    weights = draw(st.lists(st.integers(0, 40), min_size=vocab, max_size=vocab).filter(any))
    drift = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=vocab, max_size=vocab))
    cap = draw(st.integers(0, 63)) / 64
    keep = draw(st.lists(st.booleans(), min_size=vocab, max_size=vocab))
    return torch.tensor([weights]) / 64, torch.tensor([drift]), cap, torch.tensor(keep)


@given(rows())
@settings(max_examples=400, deadline=None)
def test_the_mask_is_the_longest_prefix_within_the_cap(row: tuple[torch.Tensor, ...]) -> None:
    probabilities, drift, cap, keep = row
    mass = [Fraction(v) for v in probabilities[0].tolist()]
    order = sorted((v for v in range(len(mass)) if not keep[v]), key=lambda v: (-float(drift[0, v]), v))
    limit = Fraction(cap) * sum(mass)
    fitting = [n for n in range(len(order) + 1) if sum(mass[v] for v in order[:n]) <= limit]
    mask = drift_mask(probabilities, drift, cap, keep)[0]
    assert set(mask.nonzero()[:, 0].tolist()) == set(order[: max(fitting)])
    assert not bool((mask & keep).any())
    assert sum(mass[v] for v in range(len(mass)) if mask[v]) <= limit
    left = [v for v in order if not mask[v]]
    if left:  # the next one would pass the cap
        assert sum((mass[v] for v in range(len(mass)) if mask[v]), mass[left[0]]) > limit
    assert sum(mass[v] for v in range(len(mass)) if not mask[v]) > 0


@given(rows(), st.integers(0, 2**32 - 1))
@settings(max_examples=400, deadline=None)
def test_the_random_mask_takes_what_fits(row: tuple[torch.Tensor, ...], seed: int) -> None:
    probabilities, _, cap, keep = row
    keys = np.random.default_rng(seed).random(probabilities.shape)
    budget = cap * probabilities.double().sum(-1)
    mass, left = [Fraction(v) for v in probabilities[0].tolist()], Fraction(float(budget))
    expected = set()
    for v in np.argsort(keys[0], kind="stable").tolist():
        if not keep[v] and mass[v] <= left:
            expected.add(v)
            left -= mass[v]
    mask = random_mask(probabilities, budget, torch.from_numpy(keys), keep)[0]
    assert set(mask.nonzero()[:, 0].tolist()) == expected


def test_random_masks_reach_the_drift_mask_s_mass_where_it_is_one_candidate() -> None:
    """A budget that is one candidate's own probability holds that candidate, whatever the rounding."""
    g = torch.Generator().manual_seed(0)
    probabilities = torch.randn(300, 20, generator=g).softmax(-1)
    single = torch.zeros_like(probabilities, dtype=torch.bool)
    single[:, 4] = True
    keys = torch.rand(300, 20, generator=g).double()
    keys[:, 4] = -1.0
    mask = random_mask(probabilities, masked_mass(probabilities, single), keys, torch.zeros(20, dtype=torch.bool))
    assert mask[:, 4].all()


@pytest.mark.parametrize("kinds", [1, 4])
def test_drift_is_the_probability_form(kinds: int) -> None:
    logits = 3 * torch.randn(5, 1 + kinds, 30, generator=torch.Generator().manual_seed(kinds)).double()
    p = logits.softmax(-1)
    expected = ((p[:, :1] - p[:, 1:]).abs() / ((p[:, :1] + p[:, 1:]) / 2)).mean(1)
    torch.testing.assert_close(candidate_drift(logits.log_softmax(-1)), expected)


def test_drift_where_probabilities_underflow() -> None:
    """log-probabilities whose exponential is 0 in float32, on one side, on both, and at minus infinity."""
    far = torch.tensor(
        [[[-200.0, -200.0, -300.0, -torch.inf, -torch.inf, -1.0], [-1.0, -199.0, -300.0, -torch.inf, -1.0, -1.0]]]
    )
    expected = [2.0, 2 * np.tanh(0.5), 0.0, 0.0, 2.0, 0.0]
    assert candidate_drift(far)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("spread", [0.5, 3.0, 30.0])
def test_entropies_are_those_of_the_two_distributions(spread: float) -> None:
    g = torch.Generator().manual_seed(3)
    logits = spread * torch.randn(40, 25, generator=g)
    mask = torch.rand(40, 25, generator=g) < 0.5
    mask[torch.arange(40), logits.argmin(-1)] = False
    before, after = entropies(logits.log_softmax(-1), logits.softmax(-1), mask)
    for i in range(40):
        p = logits[i].double().softmax(-1).numpy()
        q = np.where(mask[i].numpy(), 0.0, p)
        q = q / q.sum() if q.sum() > 1e-30 else None
        assert before[i].item() == pytest.approx(-sum(v * np.log(v) for v in p if v > 0), abs=1e-5)
        if q is not None:
            assert after[i].item() == pytest.approx(-sum(v * np.log(v) for v in q if v > 0), abs=1e-5)


def test_tempered_entropies_rise_with_temperature_and_meet_the_plain_one() -> None:
    logits = 4 * torch.randn(30, 50, generator=torch.Generator().manual_seed(4))
    curve = tempered_entropies(logits, (0.1, 0.5, 1.0, 2.0, 100.0))
    assert bool((curve.diff(dim=1) > 0).all())
    nothing = torch.zeros(30, 50, dtype=torch.bool)
    torch.testing.assert_close(curve[:, 2], entropies(logits.log_softmax(-1), logits.softmax(-1), nothing)[0])
    assert curve[:, 4].mean().item() == pytest.approx(np.log(50), abs=1e-2)
    assert tempered_entropies(logits, ()).shape == (30, 0)

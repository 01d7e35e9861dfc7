"""Intervals, the paired table and the shares of a gain, against numbers computed in another way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencredit.analysis.filtered_outcome import (
    accuracy,
    compare,
    interval,
    matched_temperature,
    mcnemar,
    paired,
    redrawn,
    verdict,
)
from tokencredit.evaluation.compare import wilson
from tokencredit.sampling.masking import tempered_entropies


def answers(rates: np.ndarray, samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((len(rates), samples)) < rates[:, None]).astype(np.int64)


@given(st.integers(2, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_one_sample_per_problem_is_the_plain_wilson_interval(problems: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, problems))
    correct = np.array([1] * right + [0] * (problems - right))[:, None]
    found = accuracy(correct)
    assert found["effective_n"] == pytest.approx(problems)
    assert (found["low"], found["high"]) == pytest.approx(wilson(right, problems))


def test_samples_that_always_agree_count_once_per_problem() -> None:
    once = answers(np.full(80, 0.4), 1)
    single, eight = accuracy(once), accuracy(once.repeat(8, axis=1))
    assert eight["n"] == 640
    assert eight["effective_n"] == pytest.approx(80, rel=0.02)
    assert (eight["low"], eight["high"]) == pytest.approx((single["low"], single["high"]), abs=2e-3)


def test_the_clustered_interval_covers_the_truth() -> None:
    """Rates differ between problems; the interval is about the mean over the population of problems."""
    rng, hits, runs = np.random.default_rng(1), 0, 400
    for _ in range(runs):
        rates = rng.beta(0.5, 1.0, 60)  # mean 1/3
        found = accuracy((rng.random((60, 6)) < rates[:, None]).astype(int))
        hits += found["low"] <= 1 / 3 <= found["high"]
    assert 0.91 < hits / runs < 0.98


def test_the_paired_table() -> None:
    plain = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    filtered = np.array([[1, 0, 1, 0], [0, 1, 1, 1]])
    found = paired(plain, filtered)
    assert [found[k] for k in ("both_right", "right_to_wrong", "wrong_to_right", "both_wrong", "n")] == [1, 2, 4, 1, 8]
    assert found["first_p"] == mcnemar(1, 0) == 1.0


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 5), (3, 3), (60, 202), (7, 2)])
def test_mcnemar_is_a_fair_coin(lost: int, won: int) -> None:
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1)) / 2**n
    assert mcnemar(lost, won) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


def test_arms_are_redrawn_together() -> None:
    a = answers(np.linspace(0.1, 0.9, 30), 3)
    means = redrawn({"plain": a, "filter": a, "greedy": 1 - a}, 5, 200)
    assert np.array_equal(means["plain"], means["filter"])
    assert means["plain"] + means["greedy"] == pytest.approx(np.ones(200))


def test_the_bootstrap_s_spread_is_that_of_two_stages() -> None:
    """Var = Var(problem means)/P + mean within variance/(P S), plug-in: what redrawing problems and samples gives."""
    a = answers(np.random.default_rng(2).beta(1, 1, 50), 4)
    means = redrawn({"plain": a}, 0, 6000)["plain"]
    each = a.mean(1)
    expected = each.var() / 50 + (each * (1 - each)).mean() / (50 * 4)
    assert means.var() == pytest.approx(expected, rel=0.08)
    assert means.mean() == pytest.approx(a.mean(), abs=0.005)


def arms(filter_rate: float, control_rate: float, problems: int = 400) -> dict[str, np.ndarray]:
    """Answers from shared uniform numbers, so that an arm with a higher rate is right wherever a lower one is."""
    u = np.random.default_rng(3).random((problems, 4))
    rates = {"plain": 0.3, "filter": filter_rate, "temperature": control_rate}
    return {name: (u < rate).astype(int) for name, rate in rates.items()}


@pytest.mark.parametrize(
    ("rate", "control", "words"),
    [
        (0.3, 0.5, "No gain to explain: the filter's gain cannot be told from zero."),
        (0.2, 0.5, "No gain to explain: the filter is worse than plain sampling."),
        (0.5, 0.5, "all of it"),
        (0.5, 0.4, "a part of it"),
        (0.5, 0.46, "most of it"),
        (0.5, 0.3, "none that could be shown"),
        (0.5, 0.25, "none that could be shown"),
        (0.4, 0.6, "more than the filter gains"),
    ],
)
def test_verdicts_say_what_the_interval_allows(rate: float, control: float, words: str) -> None:
    data = arms(rate, control)
    found = compare(data, 0, 2000)
    entry = found["controls"]["temperature"]
    assert words in entry["verdict"]
    gain = data["filter"].mean() - data["plain"].mean()
    assert found["gains"]["filter"]["gain"] == pytest.approx(gain)
    assert entry["difference"] == pytest.approx(data["filter"].mean() - data["temperature"].mean())
    if entry["share"] is None:
        assert found["gains"]["filter"]["low"] <= 0
        assert entry["low"] is entry["high"] is None
    else:
        assert entry["share"] == pytest.approx((data["temperature"].mean() - data["plain"].mean()) / gain)
        assert entry["low"] <= entry["share"] <= entry["high"]


def test_too_few_samples_are_called_that() -> None:
    gain = {"gain": 0.1, "low": 0.01, "high": 0.2}
    assert "too few samples" in verdict("Greedy decoding", gain, {"share": 0.5, "low": -0.4, "high": 1.6})


def test_intervals_of_a_known_distribution() -> None:
    low, high = interval(np.linspace(0, 1, 1001))
    assert (low, high) == pytest.approx((0.025, 0.975))


@pytest.mark.parametrize("sharpness", [0.3, 2.0, 8.0])
def test_the_matched_temperature_has_the_entropy_asked_for(sharpness: float) -> None:
    """Against the entropy computed at the temperature that was found, not interpolated."""
    from tokencredit.analysis.filtered import TEMPERATURES

    logits = sharpness * torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
    curve = tempered_entropies(logits, TEMPERATURES).mean(0)
    for temperature in (0.09, 0.31, 0.77, 1.0, 1.6):
        target = tempered_entropies(logits, (temperature,)).mean().item()
        found = matched_temperature(TEMPERATURES, curve.tolist(), target)
        assert found["inside"]
        assert found["temperature"] == pytest.approx(temperature, rel=3e-3)
        assert tempered_entropies(logits, (found["temperature"],)).mean().item() == pytest.approx(target, rel=5e-3)


@pytest.mark.parametrize(("target", "expected"), [(0.0, 0.5), (0.05, 0.5), (0.1, 0.5), (3.0, 2.0)])
def test_a_target_outside_of_what_was_measured_takes_the_nearest_end(target: float, expected: float) -> None:
    found: dict[str, Any] = matched_temperature((0.5, 1.0, 2.0), (0.1, 1.0, 2.0), target)
    assert found["temperature"] == expected
    assert found["inside"] == (target == 0.1)

"""Scores of a credit against brute force and against truths that were put in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import spearmanr

from tokencredit.analysis.fidelity_scores import (
    SCORES,
    Credited,
    Measured,
    Redraw,
    Score,
    planted_only,
    rank_correlation,
    score_all,
    score_sign,
    top_mass,
)

RNG = np.random.default_rng(0)


def measured(problem: str, effect: Sequence[float], **more: object) -> Measured:
    e = np.array(effect, dtype=np.float64)
    given = {
        "se": np.full(len(e), 0.01), "variance": np.zeros(len(e)), "halves": np.stack([e, e]), "sampled": e != 0,
        "category": ("a",) * len(e),
    }  # fmt: skip
    return Measured(problem, e, **(given | more))


def named(scores: Sequence[Score], name: str, category: str = "all") -> Score:
    (found,) = [s for s in scores if (s.name, s.category) == (name, category)]
    return found


def test_rank_correlation_is_spearmans_with_ties() -> None:
    for _ in range(100):
        x, y = RNG.integers(0, 4, 12), RNG.integers(0, 3, 12)
        if np.ptp(x) and np.ptp(y):
            assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert rank_correlation(np.ones(5), np.arange(5)) == 0


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 1.0])
def test_top_mass_is_the_mean_over_all_ways_to_break_ties(share: float) -> None:
    for _ in range(10):
        x, mass = RNG.integers(0, 3, 6).astype(float), RNG.normal(size=6)
        totals = []
        for order in itertools.permutations(range(6)):
            best = sorted(order, key=lambda i: -x[i])  # stable: ties stay in the permutation's order
            left, total = share * 6, 0.0
            for i in best:
                total += min(1.0, left) * mass[i]
                left = max(0.0, left - 1)
            totals.append(total)
        assert top_mass(x, mass, share) == pytest.approx(np.mean(totals))


def test_sign_counts_significant_tokens_and_half_of_the_uncredited() -> None:
    truth = measured("p", [0.5, -0.5, 0.5, 0.015, -0.3])
    assert score_sign(np.array([1.0, 1.0, 0.0, 1.0, -2.0]), np.ones(5), truth) == (1 + 0 + 0.5 + 1, 4.0, 4)


def test_planted_only_by_hand() -> None:
    moved = [np.array([0.9, 0.8, 0.0, 0.0, 0.1]), None, np.array([0.7, 0.0, 0.0, 0.2, 0.3])]
    effect = [np.array([0.5, 0.001, 0, 0, 0]), np.zeros(2), np.array([0.01, 0, 0, 0, 0])]
    se = [np.full(len(e), 0.01) for e in effect]
    # ten tokens: the 0.9 quantile (linear) is 0.81, so only the first counts, and it has an effect
    assert [None if f is None else f.tolist() for f in planted_only(moved, effect, se)] == [
        [False] * 5,
        None,
        [False] * 5,
    ]
    without_effect = [np.zeros(5), np.zeros(2), np.zeros(5)]
    found = planted_only(moved, without_effect, [np.zeros_like(e) for e in without_effect])
    assert found[0] is not None and found[0].tolist() == [True, False, False, False, False]
    assert planted_only([None], [np.zeros(2)], [np.zeros(2)]) == [None]


def test_intervals_come_from_problems() -> None:
    """Repeating every response of a problem changes nothing; the width is that of a mean over problems."""
    per = RNG.normal(size=60)
    once = Redraw([f"p{i}" for i in range(60)], 4000, 3).score("s", "all", [(v, 1.0, 1) for v in per])
    names = [f"p{i}" for i in range(60) for _ in range(5)]
    often = Redraw(names, 4000, 3).score("s", "all", [(per[i], 1.0, 1) for i in range(60) for _ in range(5)])
    assert (often.value, often.low, often.high) == pytest.approx((once.value, once.low, once.high))
    assert (once.n, often.n, once.problems, often.problems) == (60, 300, 60, 60)
    half = 1.96 * per.std() / 60**0.5
    assert once.value == pytest.approx(per.mean())
    assert (once.high - once.low) / 2 == pytest.approx(half, rel=0.08)


def test_the_interval_is_a_bootstrap_of_the_ratio() -> None:
    parts = [(RNG.random(), RNG.random() + 0.5, 1) for _ in range(12)]
    names = [f"p{i % 4}" for i in range(12)]
    redraw = Redraw(names, 200, 1)
    score = redraw.score("s", "all", parts)
    ratios = []
    for times in redraw.times:
        assert times.sum() == 4
        chosen = [
            part
            for k, count in enumerate(times)
            for _ in range(count)
            for part, n in zip(parts, names, strict=True)
            if n == f"p{k}"
        ]
        ratios.append(sum(p[0] for p in chosen) / sum(p[1] for p in chosen))
    assert (score.low, score.high) == pytest.approx(tuple(np.quantile(ratios, [0.025, 0.975])))


def test_nothing_to_score_is_nan() -> None:
    score = Redraw(["p", "q"], 100, 1).score("s", "all", [(0.0, 0.0, 0)] * 2)
    assert np.isnan([score.value, score.low, score.high]).all() and score.n == score.problems == 0


@pytest.fixture(scope="module")
def noisy() -> list[Measured]:
    """40 responses of 20 tokens, two of which have an effect; halves are noisy, of a known variance."""
    out = []
    for i in range(40):
        true = np.zeros(20)
        true[[3, 11]] = 0.3, -0.2
        sd = np.where(np.arange(20) % 2, 0.15, 0.0)
        halves = true + sd * np.sqrt(2) * RNG.normal(size=(2, 20))
        category = tuple("even" if t % 2 == 0 else "odd" for t in range(20))
        out.append(
            Measured(f"p{i // 2}", halves.mean(0), sd, sd**2, halves, sd > 0, i % 2 == 0, category, np.arange(20) == 5)
        )
    return out


def test_credits_with_known_scores(noisy: list[Measured]) -> None:
    given = {
        "flat": [Credited(np.full(20, -0.7), -0.7) for _ in noisy],
        "twin": [Credited(np.full(20, -0.7), -0.7) for _ in noisy],
        "truth": [Credited(m.effect) for m in noisy],
        "early": [Credited(np.where(np.arange(20) < 4, 3.0, 1.0), 2.0) for _ in noisy],
    }
    found = score_all(noisy, given, {"place": [np.arange(20.0) for _ in noisy]}, 300, 5)
    assert found["flat"] == found["twin"]
    assert named(found["flat"], "rank").value == 0 and named(found["flat"], "top20").value == pytest.approx(0.2)
    assert named(found["truth"], "rank").value == pytest.approx(1)
    assert named(found["truth"], "sign").value == 1
    assert [s.value for s in found["truth"]] == [s.value for s in found["reference:oracle"]]
    assert named(found["flat"], "planted").value == pytest.approx(1 / 20)
    assert named(found["early"], "planted").value == pytest.approx(1 / (4 * 3 + 16))
    for credit in ("flat", "early", "reference:oracle", "reference:uniform"):
        shares = [named(found[credit], "share", c).value for c in ("even", "odd")]
        assert sum(shares) == pytest.approx(1)
    assert named(found["early"], "share", "even").value == pytest.approx(0.5)
    sides = [named(found["early"], "rank", side) for side in ("right", "wrong")]
    assert [s.n for s in sides] == [20, 20]
    assert np.mean([s.value for s in sides]) == pytest.approx(named(found["early"], "rank").value)
    assert abs(named(found["truth:shuffled"], "rank").value) < 0.06
    assert named(found["truth:shuffled"], "top20").value == pytest.approx(0.2, abs=0.03)
    assert not any(s.name == "sign" for s in found["signal:place"])


def test_the_corrected_share_is_that_of_the_true_effects() -> None:
    """Half of the tokens are noise; a credit on token 3 and three quiet ones holds 0.09 / 0.13 of the true squares."""
    weight, true = np.isin(np.arange(20), [0, 2, 3, 4]).astype(float), np.zeros(20)
    true[[3, 11]] = 0.3, -0.2
    sd = np.where(np.arange(20) % 2, 0.15, 0.0)
    sums = {name: np.zeros(2) for name in ("top20", "top20_sq")}
    for _ in range(3000):
        truth = measured("p", true + sd * RNG.normal(size=20), variance=sd**2)
        for name in sums:
            sums[name] += SCORES[name](weight, weight, truth)[:2]
    corrected, plain = (sums[name][0] / sums[name][1] for name in ("top20_sq", "top20"))
    assert corrected == pytest.approx(0.09 / 0.13, abs=0.03)
    assert plain < 0.3, "plain shares are diluted by the noise of the other tokens: 0.6 without it"


def test_the_split_half_reference_is_below_what_all_samples_allow(noisy: list[Measured]) -> None:
    found = score_all(noisy, {}, {}, 300, 5)
    split = named(found["reference:split_half"], "rank").value
    expected = np.mean([spearmanr(np.abs(m.halves[0]), np.abs(m.halves[1])).statistic for m in noisy])
    assert split == pytest.approx(expected)
    whole = np.mean([spearmanr(np.abs(m.effect), np.isin(np.arange(20), [3, 11])).statistic for m in noisy])
    assert split < 1 and whole < 1


def test_same_seed_same_scores(noisy: list[Measured]) -> None:
    credit = {"m": [Credited(RNG.normal(size=20)) for _ in noisy]}
    assert score_all(noisy, credit, {}, 200, 1) == score_all(noisy, credit, {}, 200, 1)
    assert score_all(noisy, credit, {}, 200, 1) != score_all(noisy, credit, {}, 200, 2)


def test_every_score_has_its_words() -> None:
    import tokencredit.analysis.fidelity_scores as module

    assert all(name in (module.__doc__ or "") for name in SCORES)

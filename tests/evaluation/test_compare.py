"""Comparisons against the worked numbers of the grading specification and independent computations."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tokencredit.evaluation import compare
from tokencredit.evaluation.metrics import avg_at_k
from tokencredit.study.errors import UserError

A = dict(enumerate([41.2, 43.0, 42.1, 40.8, 42.9]))
B = dict(enumerate([39.9, 42.2, 41.8, 39.1, 41.7]))
PAIRED_A = [0.75, 0.25, 1, 0, 0.5, 0.875, 0.125, 0.625]
PAIRED_B = [0.5, 0.25, 0.875, 0.125, 0.25, 0.75, 0, 0.5]


def test_over_seeds_worked():
    r = compare.over_seeds(A, B)
    assert (r.n, r.unit) == (5, "seeds")
    assert r.difference == pytest.approx(1.06, abs=1e-12)
    assert r.se == pytest.approx(0.2379075450674, abs=1e-12)
    assert r.t == pytest.approx(4.4555123281, abs=1e-9)
    assert r.p == pytest.approx(0.0111989817, abs=1e-9)
    assert (r.low, r.high) == (pytest.approx(0.3994627610, abs=1e-9), pytest.approx(1.7205372390, abs=1e-9))
    assert r.sign_flip_p == 0.0625 == compare.sign_flip_floor(5)
    assert r.evidence


def test_over_seeds_uses_only_shared_seeds_and_says_how_many():
    r = compare.over_seeds({**A, 7: 99.0}, {k: v for k, v in B.items() if k != 2} | {9: 0.0})
    assert r.n == 4
    assert sorted(r.values) == [0, 1, 3, 4]
    assert r == compare.over_seeds({k: A[k] for k in (0, 1, 3, 4)}, {k: B[k] for k in (0, 1, 3, 4)})


def test_swapping_the_methods_mirrors_the_result():
    r, s = compare.over_seeds(A, B), compare.over_seeds(B, A)
    assert (s.difference, s.low, s.high) == pytest.approx((-r.difference, -r.high, -r.low))
    assert (s.p, s.sign_flip_p) == pytest.approx((r.p, r.sign_flip_p))


def test_one_seed_gives_a_difference_and_no_interval():
    r = compare.over_seeds({3: 0.5}, {3: 0.25, 4: 1.0})
    assert (r.difference, r.n, r.se, r.p, r.low, r.evidence) == (0.25, 1, None, None, None, None)
    assert compare.over_seeds({1: 1.0}, {2: 1.0}) is None


def test_equal_differences_claim_nothing():
    r = compare.over_seeds({0: 0.3, 1: 0.4, 2: 0.7}, {0: 0.2, 1: 0.3, 2: 0.6})
    assert r.se == 0
    assert (r.t, r.p, r.low) == (None, None, None)


def test_sign_flip_counts_every_pattern():
    d = [0.3, -0.1, 0.2, 0.4]
    sums = [sum(s * v for s, v in zip(signs, d, strict=True)) for signs in itertools.product((1, -1), repeat=4)]
    assert compare.sign_flip_p(d) == sum(abs(s) >= sum(d) - 1e-12 for s in sums) / 16
    assert compare.sign_flip_p([0.1] * 3) == compare.sign_flip_floor(3) == 0.25
    assert compare.sign_flip_p([0.0, 0.0]) == 1.0
    with pytest.raises(UserError):
        compare.sign_flip_p([])


def test_over_problems_worked():
    r = compare.over_problems(PAIRED_A, PAIRED_B)
    assert (r.difference, r.n) == (0.109375, 8)
    assert r.se == pytest.approx(0.0437978055, abs=1e-10)
    assert compare.unpaired_se(PAIRED_A, PAIRED_B) == pytest.approx(0.1673511799, abs=1e-10)
    want = stats.ttest_rel(PAIRED_A, PAIRED_B)
    assert (r.t, r.p) == pytest.approx((want.statistic, want.pvalue))
    assert (r.low, r.high) == pytest.approx(tuple(want.confidence_interval()))


def test_samples_of_a_problem_are_one_cluster():
    draws = ["1101", "0001", "1111", "0000", "1010"]
    means = [d.count("1") / 4 for d in draws]
    assert avg_at_k([d.count("1") for d in draws], 4) == 0.5
    by_problem = compare.over_problems(means, [0.0] * 5)
    assert by_problem.se == pytest.approx(0.1767766953, abs=1e-10)
    rows = [float(c) for d in draws for c in d]
    clustered = compare.over_problems(rows, [0.0] * 20, clusters=[i for i in range(5) for _ in range(4)])
    assert (clustered.se, clustered.n) == (pytest.approx(0.1767766953, abs=1e-10), 5)
    independent = compare.over_problems(rows, [0.0] * 20)
    assert independent.se == pytest.approx(0.1147, abs=1e-4)


def test_clustered_rows_may_come_in_any_order():
    rng = np.random.default_rng(0)
    a, b, c = rng.random(30), rng.random(30), rng.integers(7, size=30)
    order = rng.permutation(30)
    r, s = compare.over_problems(a, b, c.tolist()), compare.over_problems(a[order], b[order], c[order].tolist())
    assert (r.difference, r.se, r.low) == pytest.approx((s.difference, s.se, s.low), abs=1e-14)


def test_over_strata_of_one_is_itself_and_of_equals_halves_the_variance():
    r = compare.over_problems(PAIRED_A, PAIRED_B)
    one, two = compare.over_strata([r]), compare.over_strata([r, r])
    assert (one.difference, one.se, one.low, one.high) == pytest.approx((r.difference, r.se, r.low, r.high))
    assert two.se == pytest.approx(r.se / math.sqrt(2))
    assert two.n == 16
    half = stats.t.ppf(0.975, 14) * r.se / math.sqrt(2)  # equal variances: degrees of freedom add up
    assert two.high - two.difference == pytest.approx(half)


def test_exact_bootstrap_worked():
    r = compare.bootstrap_over_problems([0.75, 0.25, 1.0, 0.0, 0.5])
    assert (r.exact, r.draws) == (True, 5**5)
    assert r.sd == pytest.approx(0.1581138830, abs=1e-10)
    assert (r.low, r.high) == pytest.approx((0.2, 0.8))


def test_drawn_bootstrap_is_seeded_and_near_theory():
    values = np.random.default_rng(5).random(60)
    r, again = (compare.bootstrap_over_problems(values, seed=3) for _ in range(2))
    assert not r.exact
    assert r == again
    assert r.sd == pytest.approx(values.std() / math.sqrt(60), rel=0.05)


def test_hierarchical_bootstrap_without_sample_or_seed_noise_redraws_problems():
    d = np.array([1, 0, 1, 0, 1, 1, 0, 1, 0, 0])  # a right or wrong in every sample, b never right
    r = compare.hierarchical_bootstrap([np.array([d * 4])], [np.array([d * 0])], [4], seed=1, draws=4000)
    assert (r.mean, r.n) == (0.5, 1)
    assert r.sd == pytest.approx(math.sqrt(0.25 / 10), rel=0.05)


def test_hierarchical_bootstrap_sees_the_spread_of_seeds():
    """Constant within a seed, so only redrawing seeds moves the mean: sd / sqrt(S) with ddof 0."""
    shares = np.array([0, 2, 4, 0, 4])[:, None] * np.ones((1, 6), dtype=int)
    a, b = shares.astype(int), np.zeros_like(shares, dtype=int)
    a[shares == 2] = 4
    b[shares == 0] = 4
    r = compare.hierarchical_bootstrap([a, a], [b, b], [4, 4], seed=2, draws=4000)
    per_seed = (a - b).mean(axis=1) / 4
    assert r.mean == pytest.approx(per_seed.mean())
    assert r.sd == pytest.approx(per_seed.std() / math.sqrt(5), rel=0.05)
    assert r == compare.hierarchical_bootstrap([a, a], [b, b], [4, 4], seed=2, draws=4000)
    assert r != compare.hierarchical_bootstrap([a, a], [b, b], [4, 4], seed=3, draws=4000)


def test_hierarchical_bootstrap_spreads_as_one_that_redraws_every_sample():
    rng = np.random.default_rng(6)
    a, b = [rng.integers(0, 5, size=(3, p)) for p in (4, 7)], [rng.integers(0, 5, size=(3, p)) for p in (4, 7)]
    means = np.zeros(4000)
    for i in range(len(means)):
        runs = rng.integers(3, size=(3, 1))
        for x, y in zip(a, b, strict=True):
            problems = rng.integers(x.shape[1], size=(1, x.shape[1]))
            drawn = [(rng.random((*v[runs, problems].shape, 4)) < v[runs, problems][..., None] / 4) for v in (x, y)]
            means[i] += (drawn[0].mean() - drawn[1].mean()) / 2
    r = compare.hierarchical_bootstrap(a, b, [4, 4], seed=4, draws=4000)
    assert r.sd == pytest.approx(means.std(), rel=0.05)
    assert (r.low, r.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.02)


def test_holm():
    p = [0.01, 0.04, 0.03, 0.005]
    assert compare.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert compare.holm([]) == []
    assert compare.holm([0.9, 0.8]) == [1.0, 1.0]


def test_wilson_worked():
    assert compare.wilson(15, 30) == pytest.approx((0.3315412564, 0.6684587436), abs=1e-10)
    want = stats.binomtest(3, 40).proportion_ci(method="wilson")
    assert compare.wilson(3, 40) == pytest.approx((want.low, want.high))
    assert compare.wilson(0, 10)[0] == 0.0
    with pytest.raises(UserError):
        compare.wilson(4, 3)


def test_verdict_says_what_the_interval_shows():
    text = compare.verdict(compare.over_seeds(A, B), "MCPO", "GRPO", scale=1)
    assert "MCPO is 1.06 points above GRPO" in text
    assert "+0.40 to +1.72" in text
    assert "5 seeds" in text
    assert ": evidence of a difference" in text
    assert "floor with 5 seeds is 2/2^5 = 0.0625" in text
    noisy = compare.over_seeds({0: 0.5, 1: 0.4, 2: 0.6}, {0: 0.6, 1: 0.45, 2: 0.5})
    assert "no evidence" in compare.verdict(noisy, "A", "B")
    assert "below" in compare.verdict(noisy, "A", "B")
    assert "not evidence by itself" in compare.verdict(compare.over_seeds({0: 1.0}, {0: 0.5}), "A", "B")
    assert "no seed in common" in compare.verdict(None, "A", "B")
    assert "the same" in compare.verdict(compare.over_seeds(A, A), "A", "B")

"""The bootstrap over runs and problems, against enumeration and against formulas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tokencredit.evaluation.twoway import Redraw, Redraws, spread
from tokencredit.study.errors import UserError


def weights(count: int) -> np.ndarray:
    """How often each of `count` is drawn, in every one of the count^count draws."""
    return np.asarray([np.bincount(d, minlength=count) for d in itertools.product(range(count), repeat=count)], float)


def test_means_are_those_of_the_rows_that_were_drawn() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 2, 2))
    runs, first, second = np.array([[2.0, 0], [1, 1]]), np.array([[0.0, 2, 1], [1, 1, 1]]), np.array([[1.0, 1], [2, 0]])
    got = Redraw(runs, (first, second)).means([x, y])
    drawn = (x[[0, 0]][:, [1, 1, 2]].mean(axis=(0, 1)) + y[[0, 0]][:, [0, 1]].mean(axis=(0, 1))) / 2
    assert got[0] == pytest.approx(drawn)
    assert got[1] == pytest.approx((x.mean(axis=(0, 1)) + y[:, [0, 0]].mean(axis=(0, 1))) / 2)


def test_draws_spread_as_all_draws_do() -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 1))
    pairs = list(itertools.product(weights(2), weights(3)))
    every = Redraw(np.stack([a for a, _ in pairs]), (np.stack([b for _, b in pairs]),)).means([x])
    some = Redraws("test", draws=40_000).of((0, 1), {"b": "xyz"}).means([x])
    assert some.mean() == pytest.approx(every.mean(), abs=0.01)
    assert some.std() == pytest.approx(every.std(), rel=0.02)


def test_one_run_leaves_the_bootstrap_over_problems() -> None:
    """Its variance is known: (P - 1) / P of the variance of a mean."""
    x = np.random.default_rng(2).normal(size=(1, 50, 1))
    draws = Redraws("test", draws=20_000).of((0,), {"b": tuple(map(str, range(50)))}).means([x])
    assert draws.std() == pytest.approx(x.std() / 50**0.5, rel=0.02)


def test_rows_of_one_question_are_drawn_together() -> None:
    draws = Redraws("test").of((0,), {"b": ("q", "r", "q")})
    assert (draws.problems[0][:, 0] == draws.problems[0][:, 2]).all()
    assert set(draws.problems[0].sum(axis=1)) == {2.0, 3.0, 4.0}


def test_a_mean_over_benchmarks_is_made_of_the_same_draws() -> None:
    redraws, x = Redraws("test"), np.random.default_rng(3).normal(size=(2, 4, 1))
    alone = [redraws.of((0, 1), {name: "pqrs"}).means([v]) for name, v in (("a", x), ("b", -2 * x))]
    both = redraws.of((0, 1), {"a": "pqrs", "b": "pqrs"}).means([x, -2 * x])
    assert both == pytest.approx((alone[0] + alone[1]) / 2)


def test_nothing_to_draw_from_is_an_error() -> None:
    for seeds, questions in (((), {"b": "p"}), ((0,), {}), ((0,), {"b": ""})):
        with pytest.raises(UserError, match="at least one"):
            Redraws("test").of(seeds, questions)


def test_interval_is_of_percentiles() -> None:
    boot = spread(0.5, np.arange(1001) / 1000, 3)
    assert (boot.low, boot.high, boot.n) == (pytest.approx(0.025), pytest.approx(0.975), 3)

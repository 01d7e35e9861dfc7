"""Least squares against scipy, and against fits that leave one row out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tokencredit.evaluation.regression import least_squares
from tokencredit.study.errors import UserError


@pytest.fixture
def line() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=12)
    return x, 0.3 + 0.7 * x + rng.normal(size=12) * (1 + abs(x))


def test_slope_and_interval_are_scipys(line: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = line
    fit = least_squares(np.stack([np.ones(12), x], axis=1), y)
    want = stats.linregress(x, y)
    assert fit is not None
    slope, low, _ = fit.interval(np.array([0.0, 1.0]))
    assert slope == pytest.approx(want.slope)
    assert low == pytest.approx(want.slope - stats.t.ppf(0.975, 10) * want.stderr)
    at_two = fit.interval(np.array([1.0, 2.0]))[0]
    assert at_two == pytest.approx(want.intercept + 2 * want.slope)


def test_mean_alone_gives_the_t_interval_of_a_mean() -> None:
    y = np.array([0.1, 0.4, 0.35, 0.2])
    fit = least_squares(np.ones((4, 1)), y)
    assert fit is not None
    low, high = stats.t.interval(0.95, 3, y.mean(), stats.sem(y))
    assert fit.interval(np.ones(1)) == pytest.approx((y.mean(), low, high))


def test_robust_covariance_is_that_of_errors_of_rows_left_out(line: tuple[np.ndarray, np.ndarray]) -> None:
    """A residual over 1 - leverage is the error of predicting the row from all others."""
    x, y = line
    design = np.stack([np.ones(12), x], axis=1)
    errors = []
    for i in range(12):
        rest = np.arange(12) != i
        other = stats.linregress(x[rest], y[rest])
        errors.append(y[i] - other.intercept - other.slope * x[i])
    inverse = np.linalg.inv(design.T @ design)
    fit = least_squares(design, y, robust=True)
    assert fit is not None
    assert fit.covariance == pytest.approx(inverse @ (design.T @ np.diag(np.square(errors)) @ design) @ inverse)


def test_what_cannot_be_told_apart_has_no_fit() -> None:
    assert least_squares(np.ones((3, 2)), np.zeros(3)) is None
    assert least_squares(np.eye(2), np.zeros(2)) is None
    with pytest.raises(UserError, match="do not fit"):
        least_squares(np.ones((3, 1)), np.zeros(2))

"""Least squares with intervals; a handful of columns, no more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokencredit.study.errors import UserError


@dataclass(frozen=True)
class Fit:
    """coefficients [C] of y ~ X and their covariance [C, C]; freedom: rows less columns."""

    coefficients: np.ndarray
    covariance: np.ndarray
    freedom: int

    def interval(self, weights: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
        """(estimate, low, high) of a weighted sum of the coefficients, Student's interval."""
        from scipy.stats import t

        estimate = float(weights @ self.coefficients)
        half = float(t.ppf(0.5 + level / 2, self.freedom)) * float(np.sqrt(weights @ self.covariance @ weights))
        return estimate, estimate - half, estimate + half


def least_squares(x: np.ndarray, y: np.ndarray, robust: bool = False) -> Fit | None:
    """Fit y [N] ~ x [N, C]; None where the columns are not independent or leave no row over.

    robust: HC3 covariance (MacKinnon and White 1985) in place of the one that takes all residuals for equally wide.
    UserError: shapes that do not fit.
    """
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise UserError(f"least squares: {x.shape} and {y.shape} do not fit")
    freedom = x.shape[0] - x.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    residuals = y - x @ coefficients
    if not robust:
        return Fit(coefficients, inverse * float(residuals @ residuals) / freedom, freedom)
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    scaled = residuals / np.maximum(1 - leverage, 1e-12)
    return Fit(coefficients, inverse @ (x.T * scaled**2) @ x @ inverse, freedom)

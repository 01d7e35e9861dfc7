r"""Evaluate a sympy expression at a point with mpmath: the value and the largest magnitude met on the way.

An evaluator of our own rather than evalf, because we need odd roots of negative reals to be real, a bound on
magnitudes before they are computed, and no substitution of exact numbers into huge powers. Runs inside worker
processes; imports sympy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy
from mpmath import mp
from sympy.core.function import AppliedUndef

from tokencredit.grading.exact import TooLarge, exact

MAX_DIGITS = 20_000  # decimal digits of a magnitude, beyond which nothing is computed
_LOG2 = math.log10(2)
MAX_TERMS = 20_000  # of a finite sum or product


class Undefined(ArithmeticError):
    """No value here: a pole, an unknown function, an unbounded sum."""


class _Evaluation:
    """Value of an expression at one point; `magnitude` is the largest |log10|, `top` the largest log10 of any part."""

    def __init__(self, point: dict[str, Fraction]):
        self.point = point
        self.magnitude = 0.0
        self.top = 0.0

    def __call__(self, expr: Any) -> Any:
        value = self._value(expr)
        if mp.isnan(value) or mp.isinf(value):
            raise Undefined
        if value != 0:
            size = int(mp.mag(value)) * _LOG2
            self.top = max(self.top, size)
            self.magnitude = max(self.magnitude, abs(size))
            if self.magnitude > MAX_DIGITS:
                raise TooLarge
        return value

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, sympy.Rational):
            return mp.mpf(int(expr.p)) / int(expr.q)
        if isinstance(expr, sympy.Symbol | AppliedUndef):
            value = self.point[expr.name if isinstance(expr, sympy.Symbol) else str(expr)]
            return mp.mpf(value.numerator) / value.denominator
        if expr in _CONSTANTS:
            return _CONSTANTS[expr]()
        if isinstance(expr, sympy.Add):
            return mp.fsum(self(a) for a in expr.args)
        if isinstance(expr, sympy.Mul):
            return mp.fprod(self(a) for a in expr.args)
        if isinstance(expr, sympy.Pow | sympy.exp):
            return self._power(*expr.as_base_exp()) if isinstance(expr, sympy.exp) else self._power(*expr.args)
        if isinstance(expr, sympy.UnevaluatedExpr):
            return self(expr.args[0])
        if isinstance(expr, sympy.Sum | sympy.Product):
            return self._series(expr)
        if isinstance(expr, sympy.Integral | sympy.Derivative | sympy.Limit):
            done = expr.doit()
            if done.has(type(expr)):
                raise Undefined
            return self(done)
        function = _FUNCTIONS.get(type(expr).__name__)
        if function is None:
            raise Undefined
        return function(*(self(a) for a in expr.args))

    def _power(self, base_expr: Any, exponent_expr: Any) -> Any:
        base, exponent = self(base_expr), self(exponent_expr)
        if base == 0:
            if mp.re(exponent) > 0:
                return mp.mpf(0)
            raise Undefined
        if abs(mp.re(exponent)) * abs(int(mp.mag(base))) > 4 * MAX_DIGITS:
            raise TooLarge
        odd_root = exact(exponent_expr)
        if odd_root is not None and odd_root.denominator == 1:
            return mp.power(base, odd_root.numerator)
        if odd_root is not None and odd_root.denominator % 2 and mp.im(base) == 0 and mp.re(base) < 0:
            return (-1) ** odd_root.numerator * mp.power(-mp.re(base), exponent)
        return mp.power(base, exponent)

    def _series(self, expr: Any) -> Any:
        if len(expr.limits) != 1:
            raise Undefined
        index, low, high = expr.limits[0]
        if not high.is_finite and high in (sympy.oo, -sympy.oo):
            done = expr.doit()
            if done.has(type(expr)):
                raise Undefined
            return self(done)
        first, last = self(low), self(high)
        if any(mp.im(v) != 0 or mp.re(v) != mp.floor(mp.re(v)) for v in (first, last)) or last - first > MAX_TERMS:
            raise Undefined
        outer = dict(self.point)
        total = mp.mpf(0) if isinstance(expr, sympy.Sum) else mp.mpf(1)
        for k in range(int(mp.re(first)), int(mp.re(last)) + 1):
            self.point = {**outer, index.name: Fraction(k)}
            total = total + self(expr.function) if isinstance(expr, sympy.Sum) else total * self(expr.function)
        self.point = outer
        return total


def _snapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A rounding function that takes a value within noise of an integer for that integer."""

    def rounded(value: Any) -> Any:
        if mp.im(value) != 0:
            raise Undefined
        value = mp.re(value)
        nearest = mp.nint(value)
        return nearest if abs(value - nearest) < mp.mpf(10) ** (-mp.dps // 2) else function(value)

    return rounded


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    def only_real(*values: Any) -> Any:
        if any(mp.im(v) != 0 for v in values):
            raise Undefined
        return function(*(mp.re(v) for v in values))

    return only_real


def _factorial(value: Any) -> Any:
    if abs(mp.re(value)) > 30_000:
        raise TooLarge
    return mp.factorial(value)


_CONSTANTS: dict[Any, Callable[[], Any]] = {
    sympy.pi: lambda: +mp.pi,
    sympy.E: lambda: +mp.e,
    sympy.I: lambda: mp.mpc(0, 1),
    sympy.EulerGamma: lambda: +mp.euler,
    sympy.GoldenRatio: lambda: +mp.phi,
    sympy.Catalan: lambda: +mp.catalan,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(mp, name)
        for name in [
            "sin",
            "cos",
            "tan",
            "cot",
            "sec",
            "csc",
            "asin",
            "acos",
            "atan",
            "acot",
            "asec",
            "acsc",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "zeta",
        ]
    },
    "log": lambda x, base=None: mp.log(x) if base is None else mp.log(x) / mp.log(base),
    "Abs": abs,
    "floor": _snapped(mp.floor),
    "ceiling": _snapped(mp.ceil),
    "factorial": _factorial,
    "binomial": mp.binomial,
    "gamma": lambda x: _factorial(x - 1),
    "Mod": _real(lambda a, b: a - b * _snapped(mp.floor)(a / b)),
    "Max": _real(max),
    "Min": _real(min),
    "sign": mp.sign,
    "re": mp.re,
    "im": mp.im,
    "arg": mp.arg,
    "conjugate": mp.conj,
}


@dataclass(frozen=True)
class Value:
    """What an expression is worth at a point.

    value: an mpmath number; magnitude: the largest |log10| of any part of the expression; cancelled: by how many
    decimal digits the value is smaller than its largest part (infinite where it is 0), which is how many of them may
    be noise.
    """

    value: Any
    magnitude: float
    cancelled: float


def evaluate(expr: Any, point: dict[str, Fraction], digits: int) -> Value:
    """Value of `expr` at `point`, computed with `digits` digits. Raises Undefined or TooLarge."""
    with mp.workdps(digits):
        evaluation = _Evaluation(point)
        try:
            value = +evaluation(expr)
        except (ZeroDivisionError, ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
            raise Undefined from error
        cancelled = math.inf if value == 0 else evaluation.top - int(mp.mag(value)) * _LOG2
        return Value(value, evaluation.magnitude, cancelled)

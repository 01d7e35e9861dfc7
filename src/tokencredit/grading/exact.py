r"""Exact rational value of a sympy expression that only does rational arithmetic. Imports sympy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy

MAX_EXACT_BITS = 400_000  # size of exact integers


class TooLarge(ArithmeticError):
    """A number too large to be computed."""


def exact(expr: Any) -> Fraction | None:
    """The exact value of a tree of rational arithmetic, integer powers, factorials and roundings; None for others.

    Raises TooLarge before an integer would grow beyond MAX_EXACT_BITS.
    """
    if isinstance(expr, sympy.Rational):
        return Fraction(int(expr.p), int(expr.q))
    if not isinstance(expr, _EXACT):
        return None
    args = []
    for arg in expr.args:
        value = exact(arg)
        if value is None:
            return None
        args.append(value)
    return _exact_value(expr, args)


_EXACT = (
    sympy.Add,
    sympy.Mul,
    sympy.Pow,
    sympy.UnevaluatedExpr,
    sympy.factorial,
    sympy.binomial,
    sympy.floor,
    sympy.ceiling,
    sympy.Abs,
    sympy.Mod,
    sympy.Max,
    sympy.Min,
)


def _exact_value(expr: Any, args: list[Fraction]) -> Fraction | None:
    first = args[0]
    if isinstance(expr, sympy.Add):
        return sum(args, Fraction(0))
    if isinstance(expr, sympy.Mul):
        product = Fraction(1)
        for factor in args:
            if _bits(product) + _bits(factor) > MAX_EXACT_BITS:
                raise TooLarge
            product *= factor
        return product
    if isinstance(expr, sympy.Pow):
        exponent = args[1]
        if exponent.denominator != 1 or (first == 0 and exponent < 0):
            return None
        if abs(first) not in (0, 1) and _bits(first) * abs(exponent) > MAX_EXACT_BITS:
            raise TooLarge
        return first**exponent.numerator if abs(exponent) < 2**31 else first ** (exponent.numerator % 2)
    if isinstance(expr, sympy.factorial | sympy.binomial):
        if any(a.denominator != 1 or not 0 <= a < 30_000 for a in args):
            return None
        function = sympy.factorial if len(args) == 1 else sympy.binomial
        return Fraction(int(function(*(a.numerator for a in args))))
    simple: dict[type, Callable[[], Fraction | None]] = {
        sympy.UnevaluatedExpr: lambda: first,
        sympy.floor: lambda: Fraction(first.__floor__()),
        sympy.ceiling: lambda: Fraction(first.__ceil__()),
        sympy.Abs: lambda: abs(first),
        sympy.Mod: lambda: first % args[1] if args[1] else None,
        sympy.Max: lambda: max(args),
        sympy.Min: lambda: min(args),
    }
    return next(rule() for kind, rule in simple.items() if isinstance(expr, kind))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())

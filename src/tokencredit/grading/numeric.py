r"""Equality of two sympy expressions by exact arithmetic where both are rational, else by evaluation at many digits.

Two numbers are equal if their difference vanishes with the working precision: it is computed at P and at about 2P
digits, and a true difference stays while rounding noise shrinks. P grows with the largest and smallest magnitude met
on the way, so that 1/2^99 and 1/2^98, or 1 - cos(1e-29) and 0, differ. Expressions with symbols are compared at fixed
pseudo-random points of both signs (integers where the expression speaks of integers). Where the gold is not real the
point is outside its domain and skipped: 1/sqrt(n) = sqrt(1/n), but |x| differs from x. Odd roots of negative reals
are the real ones.

Decimals are exact rationals (4.5 = 9/2, 0.333333 differs from 1/3). Runs inside worker processes; imports sympy.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy
from mpmath import mp
from sympy.core.function import AppliedUndef

from tokencredit.grading.evaluate import Undefined, evaluate
from tokencredit.grading.exact import exact

POINTS = 24  # tried for expressions with symbols
ENOUGH = 3  # points of the gold's domain that must agree
PLENTY = 6  # real points that settle it


def same(gold: Any, answer: Any, tolerance: float | None = None) -> bool:
    """Whether two sympy expressions (or matrices) have equal values.

    `tolerance` is relative to the gold and holds for numbers alone. Raises TooLarge where a magnitude is out of bounds.
    """
    if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        return (
            isinstance(gold, sympy.MatrixBase)
            and isinstance(answer, sympy.MatrixBase)
            and gold.shape == answer.shape
            and all(same(g, a, tolerance) for g, a in zip(gold.flat(), answer.flat(), strict=True))
        )
    if gold == answer:
        return True
    infinite = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if gold in infinite or answer in infinite:
        return False
    names = symbols(gold) | symbols(answer)
    if names:
        return _same_function(gold, answer, names)
    exact_gold, exact_answer = exact(gold), exact(answer)
    if exact_gold is not None and exact_answer is not None:
        if tolerance is None:
            return exact_gold == exact_answer
        return abs(exact_gold - exact_answer) <= Fraction(repr(float(tolerance))) * abs(exact_gold)
    try:
        return _same_at(gold, answer, {}) if tolerance is None else _close_at(gold, answer, tolerance)
    except Undefined:
        return False


def symbols(expr: Any) -> set[str]:
    """Names of the free symbols and of the unknown functions (with their arguments) of an expression."""
    if not isinstance(expr, sympy.Basic | sympy.MatrixBase):
        return set()
    return {s.name for s in expr.free_symbols} | {str(f) for f in expr.atoms(AppliedUndef)}


def _close_at(gold: Any, answer: Any, tolerance: float) -> bool:
    g, a = evaluate(gold, {}, 30).value, evaluate(answer, {}, 30).value
    with mp.workdps(30):
        return bool(abs(g - a) <= mp.mpf(repr(float(tolerance))) * abs(g) * (1 + mp.mpf(10) ** -20))


def _same_at(gold: Any, answer: Any, point: dict[str, Fraction]) -> bool:
    """Equality at one point: the difference at P digits against the difference at about 2P digits."""
    rough_gold, rough_answer = evaluate(gold, point, 30), evaluate(answer, point, 30)
    with mp.workdps(30):
        scale = max(abs(rough_gold.value), abs(rough_answer.value))
        gap = abs(rough_gold.value - rough_answer.value)
        # far apart, and cancellation has not eaten the digits of either
        if gap > scale * mp.mpf("1e-6") and max(rough_gold.cancelled, rough_answer.cancelled) < 20:
            return False
    magnitude = int(max(rough_gold.magnitude, rough_answer.magnitude)) + 1
    low, high = 2 * magnitude + 40, 4 * magnitude + 100
    coarse, fine = (_difference(gold, answer, point, digits) for digits in (low, high))
    with mp.workdps(high):
        if fine == 0:
            return True
        if coarse == 0:
            return bool(fine < mp.mpf(10) ** (-(low + high) // 2) * max(mp.mpf(1), scale))
        return bool(fine < coarse * mp.mpf(10) ** (-(high - low) // 2))


def _difference(gold: Any, answer: Any, point: dict[str, Fraction], digits: int) -> Any:
    g, a = evaluate(gold, point, digits).value, evaluate(answer, point, digits).value
    with mp.workdps(digits):
        return abs(g - a)


# ---------------------------------------------------------------- expressions with symbols


def points(names: set[str], integers: bool) -> Iterator[dict[str, Fraction]]:
    """Fixed pseudo-random points: reals in (0.3, 3.3), every second one with both signs, or integers from 1 to 12."""
    for index in range(POINTS):
        point = {}
        for name in sorted(names):
            seed = zlib.crc32(f"{index}:{name}".encode())
            if integers:
                point[name] = Fraction(1 + seed % 7 + index % 6)
            else:
                value = Fraction(3, 10) + Fraction(seed % 300_007, 100_003)
                point[name] = -value if index % 2 and (seed >> 20) % 4 else value
        yield point


def _about_integers(*exprs: Any) -> bool:
    """Whether the expressions only make sense, or are only meant, for integer symbols."""
    for expr in exprs:
        if expr.atoms(sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Mod, sympy.Sum, sympy.Product):
            return True
        if any(power.base.is_negative and symbols(power.exp) for power in expr.atoms(sympy.Pow)):
            return True
    return False


def _is_real(value: Any) -> bool:
    """Real up to rounding noise (at 30 digits)."""
    return bool(mp.im(value) == 0 or abs(mp.im(value)) < mp.mpf("1e-20") * (1 + abs(mp.re(value))))


def _same_function(gold: Any, answer: Any, names: set[str]) -> bool:
    """Equality as functions: on real points of the gold's domain, else on integers, else on complex values."""
    whole = _about_integers(gold, answer)
    complex_gold = gold.has(sympy.I)
    for integers, everywhere in (
        ((True, False),) if whole else ((False, complex_gold), (True, complex_gold), (False, True))
    ):
        agreed = holes = 0
        for point in points(names, integers):
            try:
                if not everywhere and not _is_real(evaluate(gold, point, 30).value):
                    continue
            except Undefined:
                continue
            try:
                if not _same_at(gold, answer, point):
                    return False
                agreed += 1
            except Undefined:
                holes += 1
            if agreed >= PLENTY and not integers:
                break
        if agreed >= ENOUGH and agreed > holes:
            return True
    return False


def proportional(gold: Any, answer: Any, positive: bool = False) -> bool:
    """Whether gold = c * answer as functions, with one constant c that is not zero (and positive if asked)."""
    names = symbols(gold)
    if names != symbols(answer) or not names:
        return False
    first, count = None, 0
    for point in points(names, False):
        try:
            g, a = evaluate(gold, point, 60).value, evaluate(answer, point, 60).value
        except Undefined:
            continue
        with mp.workdps(60):
            if abs(g) < mp.mpf("1e-40") or abs(a) < mp.mpf("1e-40"):
                return False
            ratio = g / a
            if positive and not (_is_real(ratio) and mp.re(ratio) > 0):
                return False
            if first is not None and abs(ratio - first) > abs(first) * mp.mpf("1e-40"):
                return False
        first, count = ratio, count + 1
        if count >= PLENTY:
            break
    return count >= ENOUGH

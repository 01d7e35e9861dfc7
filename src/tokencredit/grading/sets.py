r"""Sets of real numbers behind inequalities, intervals, unions and differences, compared by their end points.

Runs inside worker processes; imports sympy.
"""

from __future__ import annotations

from typing import Any

import sympy

from tokencredit.grading.numeric import same, symbols
from tokencredit.grading.structure import Group, NamedSet, Relation, Scalar, SetOperation

_RELATIONALS = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "!=": sympy.Ne}


def as_set(tree: Any, either: bool = False) -> Any | None:
    """The sympy set a tree stands for; None if it stands for none. `either`: a list of conditions is joined by "or"."""
    try:
        return _as_set(tree, either)
    except (TypeError, ValueError, NotImplementedError, AttributeError, ZeroDivisionError):
        return None  # sympy says "I do not know" in these ways


def _as_set(tree: Any, either: bool) -> Any | None:
    if isinstance(tree, NamedSet):
        return tree.value
    if isinstance(tree, Scalar):
        return sympy.FiniteSet(tree.expr)
    if isinstance(tree, SetOperation):
        parts = [_as_set(i, either) for i in tree.items]
        if any(p is None for p in parts):
            return None
        if tree.operator == "|":
            return sympy.Union(*parts)
        if tree.operator == "&":
            return sympy.Intersection(*parts)
        return sympy.Complement(parts[0], sympy.Union(*parts[1:]))
    if isinstance(tree, Relation):
        return _conditions(tree)
    if isinstance(tree, Group):
        return _group_set(tree, either)
    return None


def _group_set(tree: Group, either: bool) -> Any | None:
    if tree.brackets not in ("", "{}"):
        if len(tree.items) != 2 or not all(isinstance(i, Scalar) for i in tree.items):
            return None
        low, high = (i.expr for i in tree.items)
        interval = sympy.Interval(low, high, left_open=tree.brackets[0] == "(", right_open=tree.brackets[1] == ")")
        return None if interval is sympy.S.EmptySet else interval  # (3, 2) is a pair
    parts = [_as_set(i, either) for i in tree.items]
    if any(p is None for p in parts):
        return None
    if not any(isinstance(i, Relation) for i in tree.items):
        return sympy.Union(*parts)
    both = sympy.Intersection(*parts)
    return sympy.Union(*parts) if either or both is sympy.S.EmptySet else both


def _conditions(relation: Relation) -> Any | None:
    """Set of one real variable that satisfies a chain of inequalities, or the set it is said to equal."""
    if set(relation.ops) == {"="}:
        last = relation.sides[-1]
        return None if len(relation.sides) != 2 else _as_set(last, False)
    result = sympy.Interval(-sympy.oo, sympy.oo)
    names: set[str] = set()
    for left, op, right in zip(relation.sides, relation.ops, relation.sides[1:], strict=False):
        if op == "=" or not isinstance(left, Scalar) or not isinstance(right, Scalar):
            return None
        names |= symbols(left.expr) | symbols(right.expr)
        if len(names) != 1:
            return None
        result = sympy.Intersection(result, _half_line(left.expr, op, right.expr))
    return result


def _half_line(left: Any, op: str, right: Any) -> Any:
    if right.is_Symbol and not symbols(left):
        left, right = right, left
        op = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}[op]
    if left.is_Symbol and not symbols(right):
        infinity = sympy.oo
        return {
            "<": lambda: sympy.Interval.open(-infinity, right),
            "<=": lambda: sympy.Interval(-infinity, right),
            ">": lambda: sympy.Interval.open(right, infinity),
            ">=": lambda: sympy.Interval(right, infinity),
            "!=": lambda: sympy.Union(sympy.Interval.open(-infinity, right), sympy.Interval.open(right, infinity)),
        }[op]()
    condition = _RELATIONALS[op](left, right)
    if condition in (sympy.true, sympy.false):
        return sympy.Interval(-sympy.oo, sympy.oo) if condition == sympy.true else sympy.S.EmptySet
    return condition.as_set()


def same_set(gold: Any, answer: Any, tolerance: float | None) -> bool:
    """Whether two sets are equal: piece by piece, in order, with equal end points and openness."""
    if gold == answer:
        return True
    left, right = _pieces(gold), _pieces(answer)
    if left is None or right is None or len(left) != len(right):
        return False
    return all(
        g[2:] == a[2:] and same(g[0], a[0], tolerance) and same(g[1], a[1], tolerance)
        for g, a in zip(left, right, strict=True)
    )


def _pieces(value: Any) -> list[tuple[Any, Any, bool, bool]] | None:
    """(start, end, left open, right open) of every piece, from left to right; None for a set that has no such form."""
    parts = value.args if isinstance(value, sympy.Union) else (value,)
    pieces: list[tuple[Any, Any, bool, bool]] = []
    for part in parts:
        if isinstance(part, sympy.Interval):
            pieces.append((part.start, part.end, bool(part.left_open), bool(part.right_open)))
        elif isinstance(part, sympy.FiniteSet):
            pieces.extend((e, e, False, False) for e in part.args)
        elif part is not sympy.S.EmptySet:
            return None
    try:
        return sorted(pieces, key=lambda p: float(p[0]))
    except TypeError:  # symbols in the end points: keep sympy's order
        return pieces


def solutions(expression: Any, name: str) -> list[Any]:
    """What `name` is where `expression` vanishes, in sympy's order; [] where sympy finds nothing explicit."""
    symbol = next((s for s in expression.free_symbols if s.name == name), None)
    if symbol is None:  # the name of an unknown function
        return []
    free = sympy.Symbol(name)
    try:
        found = sympy.solve(expression.xreplace({symbol: free}), free)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return []
    return [f for f in found if isinstance(f, sympy.Expr)]

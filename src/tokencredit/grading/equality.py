r"""Equality of two answer trees (structure.py): what the gold is decides how the answer is read.

Runs inside worker processes; imports sympy and math_verify.
"""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

from tokencredit.grading.numeric import proportional, same, symbols
from tokencredit.grading.sets import as_set, same_set, solutions
from tokencredit.grading.structure import Group, NamedSet, Ratio, Relation, Scalar, SetOperation, Word
from tokencredit.grading.units import units_differ

_PLAIN_NAME = re.compile(r"\\?[A-Za-z]+(?:\s*_\s*(?:\{[^{}]*\}|\w))?(?:\s*\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))?")


def names(tree: Any) -> set[str]:
    """Symbols anywhere in a tree."""
    if isinstance(tree, Scalar):
        return symbols(tree.expr)
    if isinstance(tree, Group | Ratio | SetOperation):
        return set().union(*(names(i) for i in tree.items)) if tree.items else set()
    if isinstance(tree, Relation):
        return set().union(*(names(s) for s in tree.sides[1:]))
    return set()


def equal(gold: Any, answer: Any, tolerance: float | None, gold_or: bool = False, answer_or: bool = False) -> bool:
    """Whether `answer` answers `gold`. `gold_or`, `answer_or`: the parts of that side were joined by "or"."""
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _equal_relations(gold, answer, tolerance)
    if isinstance(gold, Relation) and _is_assignment(gold) and not _is_set(answer):
        return equal(gold.sides[-1], answer, tolerance)
    if isinstance(answer, Relation) and _is_answer_to(answer, gold):
        return equal(gold, answer.sides[-1], tolerance)
    if isinstance(gold, Word) or isinstance(answer, Word):
        return _equal_words(gold, answer)
    if _is_set(gold) or _is_set(answer):
        left, right = as_set(gold, gold_or), as_set(answer, answer_or)
        if left is not None and right is not None:
            return same_set(left, right, tolerance)
    if isinstance(gold, Ratio) or isinstance(answer, Ratio):
        return _equal_ratios(gold, answer)
    if isinstance(gold, Group) or isinstance(answer, Group):
        return _equal_groups(gold, answer, tolerance)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return not units_differ(gold.unit, answer.unit) and same(gold.expr, answer.expr, tolerance)
    return False


def _is_set(tree: Any) -> bool:
    """Whether a tree can only be a set: an inequality (or a list of them), a union, a name, a half-open interval."""
    if isinstance(tree, Relation):
        return tree.ops != ("=",) and set(tree.ops) != {"="}
    if isinstance(tree, Group):
        if tree.brackets in ("(]", "[)"):
            return True
        return tree.brackets == "" and bool(tree.items) and all(_is_set(i) for i in tree.items)
    return isinstance(tree, SetOperation | NamedSet)


def _is_assignment(relation: Relation) -> bool:
    """name = ... = value, where the name is one symbol or function: x, m_{\\max}, f(x), D."""
    return set(relation.ops) == {"="} and _PLAIN_NAME.fullmatch(relation.left.strip()) is not None


def _is_answer_to(answer: Relation, gold: Any) -> bool:
    """Whether the last side of `answer` may be compared with a gold that is no relation.

    The left side must be what was asked for: letters and symbols without numbers (m+n, a^2+b^2, \\angle ABC), or an
    expression that truly equals the right side. `x - 1 = 0` does not answer 0.
    """
    if set(answer.ops) != {"="}:
        return False
    if _is_assignment(answer):
        return True
    bare = re.sub(r"_\s*(?:\{[^{}]*\}|\w)|\^\s*(?:\{[^{}]*\}|\w)", "", answer.left)
    last = answer.sides[-1]
    vanishes = isinstance(last, Scalar) and last.expr == 0
    if not re.search(r"\d", bare) and re.search(r"[A-Za-z]", bare) and not vanishes:
        return True
    first = answer.sides[0]
    return isinstance(first, Scalar) and isinstance(last, Scalar) and same(first.expr, last.expr)


def _equal_relations(gold: Relation, answer: Relation, tolerance: float | None) -> bool:
    if _is_assignment(gold) and _is_assignment(answer):
        if _same_name(gold.left, answer.left):
            return equal(gold.sides[-1], answer.sides[-1], tolerance)
    elif _is_set(gold) or _is_set(answer):
        left, right = as_set(gold), as_set(answer)
        if left is not None and right is not None:
            return _variables(gold) == _variables(answer) and same_set(left, right, tolerance)
        return _is_set(gold) and _is_set(answer) and _same_inequality(gold, answer)
    if gold.ops == ("=",) == answer.ops:
        return _same_equation(gold, answer)
    return False


def _same_name(left: str, right: str) -> bool:
    def plain(name: str) -> str:
        return re.sub(r"[\s{}\\]", "", name).lower()

    function = re.compile(r"[a-z]\([a-z]\)")
    left, right = plain(left), plain(right)
    return (
        left == right
        or (left == "y" and bool(function.fullmatch(right)))
        or (right == "y" and bool(function.fullmatch(left)))
    )


def _variables(relation: Relation) -> set[str]:
    return {n.lower() for side in relation.sides for n in names(side)}


def _difference(relation: Relation) -> Any | None:
    """left - right of a two-sided relation between scalars."""
    left, right = relation.sides[0], relation.sides[-1]
    if len(relation.sides) != 2 or not isinstance(left, Scalar) or not isinstance(right, Scalar):
        return None
    try:
        return left.expr - right.expr
    except (TypeError, ValueError):
        return None


def _same_equation(gold: Relation, answer: Relation) -> bool:
    left, right = _difference(gold), _difference(answer)
    if left is None or right is None:
        sides = zip(gold.sides, answer.sides, strict=False)
        return len(gold.sides) == len(answer.sides) and all(equal(g, a, None) for g, a in sides)
    if proportional(left, right):
        return True
    for name in sorted(symbols(left) & symbols(right)):
        first, second = solutions(left, name), solutions(right, name)
        if first and second and len(first) == len(second):
            return any(
                all(same(f, s) for f, s in zip(first, order, strict=True)) for order in list(permutations(second))[:24]
            )
    return False


def _same_inequality(gold: Relation, answer: Relation) -> bool:
    """Inequalities in several variables: equal side by side or up to a positive factor, either way round."""
    flip = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}
    mirrored = Relation(answer.sides[::-1], tuple(flip[op] for op in answer.ops[::-1]), answer.left)
    for chain in (answer, mirrored):
        if gold.ops == chain.ops and all(equal(g, a, None) for g, a in zip(gold.sides, chain.sides, strict=True)):
            return True
    left, right = _difference(gold), _difference(answer)
    if left is None or right is None:
        return False
    if gold.ops == answer.ops and proportional(left, right, positive=gold.ops != ("!=",)):
        return True
    return flip[gold.ops[0]] == answer.ops[0] and proportional(left, -right, positive=True)


def _equal_words(gold: Any, answer: Any) -> bool:
    """Words are equal letter by letter; up to three plain letters may also be a product of symbols."""
    if not isinstance(gold, Word) or not isinstance(answer, Word):
        return False
    if gold.text == answer.text:
        return True
    return not gold.quoted and not answer.quoted and len(gold.text) <= 3 and sorted(gold.text) == sorted(answer.text)


def _equal_ratios(gold: Any, answer: Any) -> bool:
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        if len(gold.items) != len(answer.items):
            return False
        if gold.clock or answer.clock:
            return all(equal(g, a, None) for g, a in zip(gold.items, answer.items, strict=True))
        if not all(isinstance(i, Scalar) for i in (*gold.items, *answer.items)):
            return False
        left, right = [i.expr for i in gold.items], [i.expr for i in answer.items]
        return all(same(g * right[0], a * left[0]) for g, a in zip(left, right, strict=True))
    ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
    if len(ratio.items) != 2 or ratio.clock or not isinstance(other, Scalar):
        return False
    top, bottom = ratio.items
    if not isinstance(top, Scalar) or not isinstance(bottom, Scalar) or bottom.expr == 0:
        return False
    return same(other.expr * bottom.expr, top.expr)


def _equal_groups(gold: Any, answer: Any, tolerance: float | None) -> bool:
    gold, answer = _as_group(gold), _as_group(answer)
    if len(gold.items) == 1 or len(answer.items) == 1:  # a set of one is its member; any other bracket is not
        return (
            len(gold.items) == len(answer.items)
            and {gold.brackets, answer.brackets} <= {"", "{}"}
            and equal(gold.items[0], answer.items[0], tolerance)
        )
    if len(gold.items) != len(answer.items):
        return False
    unordered = {"", "{}"}
    if gold.brackets in unordered and answer.brackets in unordered:
        named = [i.left for i in gold.items if isinstance(i, Relation)]
        ordered = (
            len(set(named)) > 1 and answer.brackets == "" and not any(isinstance(i, Relation) for i in answer.items)
        )
    elif gold.brackets == "":
        ordered = any(isinstance(i, Relation) for i in gold.items)
    elif "{}" in (gold.brackets, answer.brackets):
        return False
    else:
        ordered = True
        interval = len(gold.items) == 2 or {gold.brackets, answer.brackets} & {"[)", "(]"}
        if interval and answer.brackets != "" and gold.brackets != answer.brackets:
            return False
    if ordered:
        return all(equal(g, a, tolerance) for g, a in zip(gold.items, answer.items, strict=True))
    return _matched(list(gold.items), list(answer.items), tolerance)


def _as_group(tree: Any) -> Group:
    """A group; a column or row vector is the tuple of its entries, any other value a list of one."""
    if isinstance(tree, Group):
        return tree
    if isinstance(tree, Scalar) and getattr(tree.expr, "is_Matrix", False) and 1 in tree.expr.shape:
        return Group("()", tuple(Scalar(e) for e in tree.expr.flat()))
    return Group("", (tree,))


def _matched(gold: list[Any], answer: list[Any], tolerance: float | None) -> bool:
    """Whether the members pair off, each with the first partner (enough, as equality is transitive)."""
    left = list(answer)
    for member in gold:
        partner = next((i for i, candidate in enumerate(left) if equal(member, candidate, tolerance)), None)
        if partner is None:
            return False
        left.pop(partner)
    return True

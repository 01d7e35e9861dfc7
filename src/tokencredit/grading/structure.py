r"""Read one cleaned answer into a small tree: scalars for sympy, and the shapes that decide what equality means.

The parser of math-verify 0.9.0 reads a whole answer at once and loses what we must know: whether `0,1` was a list, a
set or a pair, whether a list had repeated members, whether `100,200` is one number, which unit stood where. So the
shape (lists, brackets, relations, unions, ratios, words) is split here, and only the scalars inside go to that
parser, after its own normalisation of a LatexExtractionConfig with the rules switched off that misread (units,
malformed operators). Plain rationals skip the parser.

Runs inside worker processes; imports sympy and math_verify.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy, normalize_latex
from math_verify import LatexExtractionConfig

from tokencredit.grading.latex import Unreadable, group_end, split_top
from tokencredit.grading.units import split_plain_unit, split_text_unit


@dataclass(frozen=True)
class Scalar:
    """A sympy expression or matrix, and the text of the unit behind it."""

    expr: Any
    unit: str = ""


@dataclass(frozen=True)
class Word:
    """A textual answer: lower-case letters without spaces; `quoted` if it stood in \\text{}."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Group:
    """Several values. `brackets`: "" for a bare list, "{}" for a set, else the two brackets of a tuple or interval."""

    brackets: str
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Relation:
    """A chain `sides[0] ops[0] sides[1] ...`; ops are =, <, <=, >, >=, !=; `left` is the text of the first side."""

    sides: tuple[Any, ...]
    ops: tuple[str, ...]
    left: str


@dataclass(frozen=True)
class SetOperation:
    """A union (|), intersection (&) or difference (-) of values that are sets."""

    operator: str
    items: tuple[Any, ...]


@dataclass(frozen=True)
class NamedSet:
    """The empty set or a set of numbers by name (a sympy Set)."""

    value: Any


@dataclass(frozen=True)
class Ratio:
    """a : b : ...; `clock` if it may be a time of day."""

    items: tuple[Any, ...]
    clock: bool


@dataclass(frozen=True)
class Units:
    """Which units in plain letters may be split off a number."""

    words: bool = True
    letters: bool = False


_RELATIONS = re.compile(r"\\(leq|geq|neq|in|approx)(?![A-Za-z])|[=<>]")
_OPS = {"\\leq": "<=", "\\geq": ">=", "\\neq": "!=", "\\in": "=", "=": "=", "<": "<", ">": ">", "\\approx": "~"}
_NAMED = {
    "\\emptyset": sympy.S.EmptySet,
    "\\mathbb{R}": sympy.Interval(-sympy.oo, sympy.oo),
    "\\R": sympy.Interval(-sympy.oo, sympy.oo),
    "\\mathbb{Z}": sympy.S.Integers,
    "\\mathbb{N}": sympy.S.Naturals,
    "\\mathbb{Q}": sympy.S.Rationals,
    "\\mathbb{C}": sympy.S.Complexes,
}
_BUILDER = re.compile(r"\\\{\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|\\R))?\s*(?:\\mid|\||:)(.*)\\\}", re.DOTALL)
_SET_OPERATORS = (("|", "\\cup"), ("&", "\\cap"), ("-", "\\setminus"))
_RATIONAL = re.compile(r"([+-]?)\s*(?:(\d+)(?:\.(\d+))?|\\frac\{\s*(-?\d+)\s*\}\{\s*(\d+)\s*\}|(\d+)\s*/\s*(\d+))")
_LETTERS = re.compile(r"[A-Za-z]")
_WORD_SAFE = re.compile(r"\s*\(?\s*[A-Za-z][A-Za-z\s\-'.,()!?]*")
_JUXTAPOSED = re.compile(r"(?<![\^_\d.])\d[\d.]*\s+\d")


def read(text: str, units: Units = Units()) -> Any:
    """The tree of a cleaned answer. Raises Unreadable; TooLarge comes only later, from comparing."""
    text = text.strip()
    if not text:
        raise Unreadable("empty")
    builder = _BUILDER.fullmatch(text)
    if builder:
        return read(builder.group(2), units)
    parts = split_top(text, ",;")
    if len(parts) > 1:
        return _listed([p for p in parts if p], units)
    operation: Any = _set_operation(text, units, conditions=True)
    if operation is None:
        operation = _relation(text, units)
    if operation is None:
        operation = _set_operation(text, units, conditions=False)
    return _atom(text, units) if operation is None else operation


def _set_operation(text: str, units: Units, conditions: bool) -> SetOperation | None:
    """A union, intersection or difference; `conditions`: only of relations, as in `x < 1 \\cup x > 2`."""
    for operator, command in _SET_OPERATORS:
        pieces = split_top(re.sub(re.escape(command) + r"(?![A-Za-z])", "\x00", text), "\x00")
        if len(pieces) > 1 and (not conditions or all(_RELATIONS.search(p) for p in pieces)):
            return SetOperation(operator, tuple(read(p, units) for p in pieces))
    return None


def _listed(parts: list[str], units: Units) -> Any:
    """A bare list; `n = 2, 3, 4` is one assignment of a list, `x = 1, y = 2` a list of assignments."""
    if not parts:
        raise Unreadable("empty")
    if len(parts) == 1:
        return read(parts[0], units)
    first = _relation(parts[0], units)
    rest = [read(p, units) for p in parts[1:]]
    if first is None:
        return _flat("", [read(parts[0], units), *rest])
    if first.ops == ("=",) and not any(isinstance(r, Relation) for r in rest):
        return Relation((first.sides[0], _flat("", [first.sides[1], *rest])), ("=",), first.left)
    return _flat("", [first, *rest])


def _flat(brackets: str, items: list[Any]) -> Group:
    """A group whose bare lists (a plus-minus makes one) are members of the group itself."""
    members: list[Any] = []
    for item in items:
        members.extend(item.items if isinstance(item, Group) and item.brackets == "" else [item])
    return Group(brackets, tuple(members))


def _relation(text: str, units: Units) -> Relation | Any | None:
    """The chain of relations at the top level of `text`; None if there is none."""
    marks: list[str] = []

    def mark(match: re.Match[str]) -> str:
        marks.append(match.group())
        return "\x01"

    pieces = split_top(_RELATIONS.sub(mark, text), "\x01")
    if len(pieces) == 1:
        return None
    if len(pieces) != len(marks) + 1:  # a relation inside brackets
        raise Unreadable("a relation inside brackets")
    ops = [_OPS[m] for m in marks]
    if "~" in ops:  # "exact value, approximately ...": the exact value counts
        keep = ops.index("~")
        pieces, ops = pieces[: keep + 1], ops[:keep]
        if not ops:
            return read(pieces[0], units)
    if not all(pieces):
        raise Unreadable("a relation lacks a side")
    # the name on the left need not be readable (f(x), m_{\max}, \angle ABC)
    sides: list[Any] = []
    for index, piece in enumerate(pieces):
        try:
            sides.append(read(piece, units))
        except Unreadable:
            if index or len(pieces) > 2 or ops[0] != "=":
                raise
            sides.append(Word(piece.replace(" ", ""), True))
    return Relation(tuple(sides), tuple(ops), pieces[0])


def _atom(text: str, units: Units) -> Any:
    named = _NAMED.get(text.replace(" ", ""))
    if named is not None:
        return NamedSet(named)
    opener = "\\{" if text.startswith("\\{") else text[0]
    if opener in ("(", "[", "\\{") and group_end(text, 0) == len(text):
        closer = "\\}" if text.endswith("\\}") else text[-1]
        inner = text[len(opener) : -len(closer)]
        parts = split_top(inner, ",;")
        if opener == "\\{" or closer == "\\}":
            return _flat("{}", [read(p, units) for p in parts if p])
        if len(parts) > 1:
            return _flat(opener + closer, [read(p, units) for p in parts])
        if opener == "(" and closer == ")":
            return read(inner, units)
    if text.startswith("{") and group_end(text, 0) == len(text):
        return read(text[1:-1], units)
    ratio = split_top(text, ":")
    if len(ratio) > 1:
        clock = re.fullmatch(r"\d{1,2}\s*:\s*\d\d.*", text) is not None
        return Ratio(tuple(read(p, units) for p in ratio), clock)
    word = as_word(text)
    if word is not None:
        return word
    value, unit = split_text_unit(text)
    if not unit:
        value, unit = split_plain_unit(text, units.letters) if units.words else (text, "")
    if "\\pm" in value or "\\mp" in value:
        plus, minus = value.replace("\\pm", "+").replace("\\mp", "-"), value.replace("\\pm", "-").replace("\\mp", "+")
        return Group("", (Scalar(scalar(plus), unit), Scalar(scalar(minus), unit)))
    return Scalar(scalar(value), unit)


def as_word(text: str) -> Word | None:
    r"""A word or phrase: all of it in \text{}, or three plain letters and more without any mathematics; else None."""
    quoted = re.fullmatch(r"(?:\s*\\text\s*\{[^{}]*\}\s*)+", text) is not None
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    if not _WORD_SAFE.fullmatch(bare):
        return None
    letters = _LETTERS.findall(bare)
    if not letters or (not quoted and len(letters) < 3):
        return None
    if not quoted and re.search(r"\w\s*\(", bare):  # I(x): a function
        return None
    return Word(squeeze(bare), quoted)


def squeeze(text: str) -> str:
    """Lower-case letters and digits of a phrase."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\\[A-Za-z]+", "", text).lower()) or text.replace(" ", "")


# ---------------------------------------------------------------- scalars

_NORMALIZATION = replace(
    LatexExtractionConfig().normalization_config,
    units=False,
    malformed_operators=False,
    nits=False,
    boxed="none",
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)


@lru_cache(maxsize=4096)
def scalar(text: str) -> Any:
    """The sympy expression of one scalar: decimals as exact rationals, `i` as the imaginary unit. Raises Unreadable."""
    match = _RATIONAL.fullmatch(text)
    if match:
        return _rational(match)
    if _JUXTAPOSED.search(text):
        raise Unreadable("two numbers side by side")
    try:
        normal = normalize_latex(text, _NORMALIZATION)
        expr = latex2sympy(
            normal, is_real=True, convert_degrees=False, normalization_config=None, conversion_config=_CONVERSION
        )
        expr = _tidy(expr)
    except (MemoryError, Unreadable):
        raise
    except Exception as error:  # the parser raises bare Exceptions, and many others from within
        raise Unreadable("not read by the parser") from error
    if not isinstance(expr, sympy.Expr | sympy.MatrixBase):
        raise Unreadable(f"a {type(expr).__name__} where a number or expression should stand")
    return expr


def _rational(match: re.Match[str]) -> Any:
    sign, whole, decimals, top, bottom, left, right = match.groups()
    if whole is not None:
        value = sympy.Rational(int(whole + (decimals or "")), 10 ** len(decimals or ""))
    else:
        divisor = int(bottom or right)
        if divisor == 0:
            raise Unreadable("division by zero")
        value = sympy.Rational(int(top or left), divisor)
    return -value if sign == "-" else value


def _tidy(expr: Any) -> Any:
    """Exact decimals, the imaginary unit, and constants the parser invents (Euler's gamma) back to symbols."""
    if isinstance(expr, sympy.MatrixExpr):
        expr = expr.doit()
    if isinstance(expr, sympy.MatrixBase):
        return expr.as_immutable().applyfunc(_tidy)
    if not isinstance(expr, sympy.Basic):
        raise Unreadable("not an expression")
    swap: dict[Any, Any] = {}
    for derivative in expr.atoms(sympy.Derivative):  # dx/dt of a symbol x is a quantity of its own, not 0
        if not set(derivative.variables) & derivative.expr.free_symbols:
            swap[derivative] = sympy.Symbol(str(derivative), real=True)
    for number in expr.atoms(sympy.Float):
        swap[number] = sympy.Rational(str(number))
    if expr.has(sympy.EulerGamma):
        swap[sympy.EulerGamma] = sympy.Symbol("gamma", real=True)
    bound = {s.name for series in expr.atoms(sympy.Sum, sympy.Product) for s in series.variables}
    for symbol in expr.free_symbols:
        if symbol.name == "i" and "i" not in bound:
            swap[symbol] = sympy.I
        elif symbol.name == "e":
            swap[symbol] = sympy.E
    return expr.xreplace(swap) if swap else expr

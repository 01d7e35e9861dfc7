r"""Answers that are not worth a computer algebra system: refused from the text alone, before anything is parsed.

The parser evaluates binomials while it reads, and no alarm interrupts a long multiplication; so towers of exponents,
huge powers, factorials and binomials, deep nesting and long texts are turned away here. What slips through meets the
kill timer.
"""

from __future__ import annotations

import math
import re

MAX_LENGTH = 300  # characters; a gold that is longer itself raises the bar
MAX_DEPTH = 24
MAX_EXPONENT = 100_000
MAX_FACTORIAL = 10_000
MAX_BINOMIAL = 10_000

_TOKENS = re.compile(r"\d+(?:\.\d+)?|\\cdot|\\times|[-+*/^!(){}]|\s+|.", re.DOTALL)
_HEAVY = re.compile(
    r"\\(?:operatorname|text|mathrm)\s*\{\s*(?:eye|zeros|ones|diag|rank|rref|svd|SVD|eig(?:en\w*)?|diagonalize|orth\w*)\s*\}"
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\ud800-\udfff]")
_E_NOTATION = re.compile(r"\d\s?[eE]\s?[+-]?\d{4,}")


def refusal(box: str, gold: str = "") -> str:
    """Why `box` is refused, or "" if it may be parsed. `gold` only sets how long an honest answer may be."""
    if len(box) > max(MAX_LENGTH, 2 * len(gold) + 40):
        return "too long"
    if _CONTROL.search(box.replace("\x0crac", "")):
        return "control characters"
    if _depth(box) > MAX_DEPTH:
        return "nested too deeply"
    if _HEAVY.search(box) or _E_NOTATION.search(box):
        return "too large"
    if re.search(r"!\s*!", box) or _huge_postfix(box) or _huge_powers(box) or _huge_binomials(box):
        return "too large"
    return ""


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")}]":
            depth -= 1
    return deepest


def _huge_powers(text: str) -> bool:
    """A power whose exponent is a plain number beyond the bound, or a tower of plain numbers."""
    return any(_size(_group(text, match.end())) > MAX_EXPONENT for match in re.finditer(r"\^\s*", text))


def _huge_postfix(text: str) -> bool:
    """A factorial of a large plain number, or of a group that holds a factorial or a power of plain numbers."""
    for match in re.finditer(r"!", text):
        before = text[: match.start()].rstrip()
        number = re.search(r"(\d+)$", before)
        if number and (len(number.group(1)) > 9 or int(number.group(1)) > MAX_FACTORIAL):
            return True
        if before.endswith((")", "}")) and _size(_group_before(before)) > MAX_FACTORIAL:
            return True
    return False


def _huge_binomials(text: str) -> bool:
    tops = [_group(text, m.end()) for m in re.finditer(r"\\[dt]?binom\s*", text)]
    tops += [text[: m.start()].rpartition("{")[2] for m in re.finditer(r"\\choose", text)]
    return any(_size(top) > MAX_BINOMIAL for top in tops)


def _group(text: str, start: int) -> str:
    """The brace group, parenthesis or token (with the powers behind it) that starts at `start`."""
    if start < len(text) and text[start] in "{(":
        depth = 0
        for at in range(start, len(text)):
            depth += (text[at] in "{(") - (text[at] in "})")
            if depth == 0:
                return text[start : at + 1]
        return text[start:]
    token = re.compile(r"-?\d+|\\?[A-Za-z]+|.", re.DOTALL).match(text, start)
    return token.group() if token else ""


def _group_before(text: str) -> str:
    """The bracketed group that ends at the end of `text`."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] in "})") - (text[at] in "{(")
        if depth == 0:
            return text[at:]
    return text


def _size(text: str) -> float:
    """Magnitude of an arithmetic text of plain numbers, infinity beyond floating point; 0 if it holds a symbol."""
    tokens = [t for t in _TOKENS.findall(text) if not t.isspace()]
    try:
        value, at = _sum(tokens, 0)
    except (ValueError, IndexError, RecursionError, ZeroDivisionError):
        return 0.0
    except OverflowError:
        return math.inf
    return abs(value) if at == len(tokens) else 0.0


def _sum(tokens: list[str], at: int) -> tuple[float, int]:
    value, at = _product(tokens, at)
    while at < len(tokens) and tokens[at] in "+-":
        term, after = _product(tokens, at + 1)
        value, at = (value + term if tokens[at] == "+" else value - term), after
    return value, at


def _product(tokens: list[str], at: int) -> tuple[float, int]:
    value, at = _power(tokens, at)
    while at < len(tokens) and (tokens[at] in ("*", "/", "\\cdot", "\\times") or tokens[at] in "({"):
        divide, skip = tokens[at] == "/", tokens[at] not in "({"
        factor, at = _power(tokens, at + skip)
        value = value / factor if divide and factor else value * factor
    return value, at


def _power(tokens: list[str], at: int) -> tuple[float, int]:
    if tokens[at] == "-":
        value, at = _power(tokens, at + 1)
        return -value, at
    if tokens[at] in "({":
        value, at = _sum(tokens, at + 1)
        if tokens[at] not in ")}":
            raise ValueError
        at += 1
    else:
        value, at = float(tokens[at]), at + 1
    while at < len(tokens) and tokens[at] in "!^":
        if tokens[at] == "!":
            value, at = (math.inf if value > 170 else math.gamma(abs(value) + 1)), at + 1
        else:
            exponent, at = _power(tokens, at + 1)
            value = abs(value) ** exponent
    return value, at

r"""Clean up the LaTeX of one answer before it is parsed: spelling, spacing, and what the parser is known to misread.

Pure text to text, no computer algebra. Every rule either leaves the meaning alone (`\dfrac` is `\frac`) or makes one
reading explicit where the parser of math-verify 0.9.0 takes a wrong one (`1 1/4`, `4.5e33`, `\sqrt(2)`, `2^(n+1)`,
`y'`, `100!^2`, `0.\overline{3}`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tokencredit.grading.extract import last_box

_CHARACTERS = str.maketrans(
    {
        **{chr(0xFF10 + d): str(d) for d in range(10)},
        **dict.fromkeys("−–—﹣－‐‑", "-"),
        **dict.fromkeys("\u00a0\u2007\u2008\u3000\t\n\r\v", " "),
        **dict.fromkeys("\u2009\u202f\u2006", "\\,"),
        **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061\u2062", ""),
        "×": "\\times ", "÷": "\\div ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "*",
        "≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "⩽": "\\leq ", "⩾": "\\geq ", "∈": "\\in ",
        "∞": "\\infty ", "π": "\\pi ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ", "±": "\\pm ", "∓": "\\mp ",
        "°": "^\\circ ", "′": "'", "’": "'", "²": "^{2}", "³": "^{3}", "⁴": "^{4}", "½": "\\frac{1}{2}",
        "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}",
        "，": ",", "；": ";", "：": ":", "。": ".", "（": "(", "）": ")",
        "［": "[", "］": "]", "｛": "\\{", "｝": "\\}", "＝": "=", "＋": "+",
        "％": "%", "＜": "<", "＞": ">", "√": "\\sqrt ", "…": "\\ldots ", "、": ",",
    }
)  # fmt: skip

_ELEMENTARY = "sin|cos|tan|cot|sec|csc|ln|log|exp|max|min|gcd|lcm"

# (pattern, replacement), in order; the replacement may be a function of the match
_SPELLING: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\x0crac"), r"\\frac"),  # "\frac" that went through a string escape
    (re.compile(r"\\\\(?=[A-Za-z])(?!.*\\begin)"), r"\\"),  # doubled backslashes outside matrices
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:display|text|script)style(?![A-Za-z])|\\n?olimits|\\limits"), ""),
    (re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*"), ""),
    (re.compile(r"\\[\$£€]|[£€¥]"), ""),
    (re.compile(r"(\\\\)|\\[\[\]()]|\$"), lambda m: m[1] or " "),
    (re.compile(r"\\l?v?d?dots[bcmi]?(?![A-Za-z])|\\cdots|(?<!\d)\.\.\.+|\.\.\.+(?!\d)"), r"\\text{dots}"),
    (re.compile(r"(?<=\d)\s*(?:,\s*\\!|\{\s*,\s*\}|\\[,!;: ])\s*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\phantom\s*\{[^{}]*\}|\\h?space\*?\s*\{[^{}]*\}|\\!"), ""),
    (re.compile(r"(\\\\)|\\[,;: >]|~|\\q?quad(?![A-Za-z])"), lambda m: m[1] or " "),
    (re.compile(r"\\(?:en|thin|med|thick)space(?![A-Za-z])"), " "),
    (re.compile(r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathnormal|bf|rm|it)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)|mathrm|mbox|hbox|operatorname\*?)(?![A-Za-z])"), r"\\text"),
    (re.compile(r"\\text\s*\{\s*([ei]|\\?pi)\s*\}"), r" \1 "),
    (re.compile(rf"\\text\s*\{{\s*(a(?:rc)?)?({_ELEMENTARY})(h?)\s*\}}"), lambda m: _function(m)),
    (re.compile(r"\\text\s*\{[\s~]*\}"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\langle(?![A-Za-z])"), "("),
    (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"\\[lr]?vert(?![A-Za-z])"), "|"),
    (re.compile(r"\\(?:leqslant|le)(?![A-Za-z])"), r"\\leq"),
    (re.compile(r"\\(?:geqslant|ge)(?![A-Za-z])"), r"\\geq"),
    (re.compile(r"\\ne(?![A-Za-z])|!="), r"\\neq"),
    (re.compile(r"<=|=<"), r"\\leq "),
    (re.compile(r">="), r"\\geq "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\colon(?![A-Za-z])"), ":"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\backslash(?![A-Za-z])"), r"\\setminus"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![A-Za-z\\])np\.|(?<![A-Za-z\\])math\."), ""),
    (re.compile(r"(?<![A-Za-z\\])(a(?:rc)?)?(sin|cos|tan)(h?)(?![A-Za-z])"), lambda m: _function(m)),
    (re.compile(r"(?<![A-Za-z\\])(sqrt|ln|log|exp|cot|sec|csc|pi|infty)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty "),
    # numbers
    (re.compile(r"(\d)\s*\.(?!\d)(?=\s*[/+\-*)}^,;]|\s*$)"), r"\1"),
    (re.compile(r"(?<![\d])\.(?=\d)"), "0."),
    (re.compile(r"(?<![A-Za-z\\_])(\d+(?:\.\d+)?)\s?[eE]\s?([+-]?\d+)(?![\d.A-Za-z])"), r"\1 \\cdot 10^{\2}"),
    (re.compile(r"(?<![\w.^}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\w.])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}"), lambda m: _repeating(m[1], m[2], m[3])),
    # primes, factorials with exponents, a letter E that is not the constant
    (re.compile(r"'+"), lambda m: "^{" + "\\prime " * len(m[0]) + "}"),
    (re.compile(r"(\d+|[A-Za-z])\s*!\s*(?=\^)"), r"(\1!)"),
    (re.compile(r"(?<![A-Za-z\\])E(?=\s*_)"), r"\\text{E}"),
    (re.compile(r"(?<![A-Za-z\\])I(?![A-Za-z])"), r"\\text{I}"),
    (re.compile(r"\\gamma(?![A-Za-z])"), r"\\text{gamma}"),
    # side by side is a product, where the parser takes an integer before a rational for a mixed number: 2(3)
    (re.compile(r"(?<![\^_\d.A-Za-z])(\d+)\s*(?=[(\[]|\\binom)"), r"\1 \\cdot "),
    (re.compile(r"(?<=\))\s*(?=[(\d]|\\frac|\\binom)"), r" \\cdot "),
]  # fmt: skip

_AND_OR = re.compile(
    r"\s*,?\s*\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*|\s*,?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])\s*|\s*[和或与]\s*",
    re.IGNORECASE,
)
_OR = re.compile(r"\\text\s*\{\s*,?\s*or\s*,?\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|或|\\lor|\\vee", re.IGNORECASE)
_MEASURE_WORD = re.compile(r"(?<=[\d})])\s*[\u4e00-\u9fff]{1,3}$")
_ANGLE = re.compile(r"(\d+(?:\.\d+)?|\d+\\frac\{\d+\}\{\d+\})\s*\^\\circ")
_DERIVATIVE = re.compile(r"\\frac\s*\{\s*(?:d|\\partial)(?![A-Za-z]{3})")
_LETTER_D = re.compile(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+|d(?=\s*[A-Za-z\\])")  # a d that is no differential
_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")


class Unreadable(ValueError):
    """An answer that is not mathematics this room can read."""


def clean(text: str) -> str:
    r"""One spelling for the many ways to write the same LaTeX.

    >>> clean(r"\left(\dfrac12, \sqrt3\right).")
    '(\\frac{1}{2}, \\sqrt{3})'
    """
    text = text.translate(_CHARACTERS)
    if "\\boxed" in text:
        inner = last_box(text)
        text = inner.text or text
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    text = _AND_OR.sub(", ", text)
    text = arguments(arguments(arguments(text, "\\frac", 2), "\\sqrt", 1), "\\binom", 2)
    text = _products(_grouped_exponents(text))
    text = re.sub(r"\s+", " ", text).strip(" .;,:")
    if "\\int" not in text and not _DERIVATIVE.search(text):
        text = _LETTER_D.sub(lambda m: "\\text{d}" if m[0] == "d" else m[0], text)
    text = _MEASURE_WORD.sub("", text)
    return _degrees(close_braces(text)).strip()


def has_or(text: str) -> bool:
    """Whether the answer joins its parts with "or"."""
    return _OR.search(text) is not None


def close_braces(text: str) -> str:
    """Append the closing braces that a broken gold lacks."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
    return text + "}" * max(0, depth)


def group_end(text: str, start: int) -> int:
    r"""Index after the bracket that closes the one at `start`; -1 if none. Any closer closes any opener, so that
    half-open intervals nest; `\{` is an opener, `\\` and other commands are skipped."""
    depth, at = 0, start
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            char, width = text[at : at + 2], 2
        else:
            width = 1
        if char in ("(", "[", "{", "\\{"):
            depth += 1
        elif char in (")", "]", "}", "\\}"):
            depth -= 1
            if depth == 0:
                return at + width
            if depth < 0:
                return -1
        at += width
    return -1


def split_top(text: str, separators: str) -> list[str]:
    """Pieces of `text` between the separators (single characters) that stand outside all brackets and environments."""
    pieces, at, start, environments = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            environments += text.startswith("\\begin", at) - text.startswith("\\end", at)
            if text.startswith("\\{", at):
                end = group_end(text, at)
                if end < 0:
                    raise Unreadable("unbalanced brackets")
                at = end
            else:
                at += 2
            continue
        if char in "([{":
            end = group_end(text, at)
            if end < 0:
                raise Unreadable("unbalanced brackets")
            at = end
            continue
        if char in ")]}":
            raise Unreadable("unbalanced brackets")
        if char in separators and not environments:
            pieces.append(text[start:at].strip())
            start = at + 1
        at += 1
    return [*pieces, text[start:].strip()]


def arguments(text: str, command: str, count: int) -> str:
    r"""Braces around the `count` arguments of every `command`: `\frac12`, `\frac n 2`, `\sqrt(2)` as meant."""
    out, at = [], 0
    while (found := text.find(command, at)) >= 0:
        after = found + len(command)
        if after < len(text) and text[after].isalpha():
            out.append(text[at:after])
            at = after
            continue
        out.append(text[at:after])
        at = after
        if command == "\\sqrt":
            bracket = re.compile(r"\s*\[[^\]]*\]").match(text, at)
            if bracket:
                out.append(bracket.group().strip())
                at = bracket.end()
        for _ in range(count):
            piece, at = _argument(text, at, parenthesised=command == "\\sqrt")
            out.append("{" + arguments(piece, command, count) + "}")
    return "".join(out) + text[at:]


def _argument(text: str, at: int, parenthesised: bool) -> tuple[str, int]:
    """One TeX argument from `at` on: its text without braces, and the index after it."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at >= len(text):
        raise Unreadable("a command lacks its argument")
    if text[at] == "{" or (parenthesised and text[at] == "("):
        end = group_end(text, at)
        if end < 0:
            if text[at] == "{":  # a broken gold: the rest is the argument
                return text[at + 1 :], len(text)
            raise Unreadable("unbalanced brackets")
        return text[at + 1 : end - 1], end
    command = re.compile(r"\\[A-Za-z]+").match(text, at)
    if command:
        end = command.end()
        while end < len(text) and text[end] in "{[":
            closed = group_end(text, end)
            if closed < 0:
                break
            end = closed
        return text[at:end], end
    return text[at], at + 1


def _grouped_exponents(text: str) -> str:
    """`x^(a+b)` means `x^{a+b}`."""
    at = 0
    while (found := text.find("^(", at)) >= 0:
        end = group_end(text, found + 1)
        if end < 0:
            return text
        text = f"{text[:found]}^{{{text[found + 2 : end - 1]}}}{text[end:]}"
        at = found + 1
    return text


def _products(text: str) -> str:
    r"""A dot between a fraction (or the like) and a fraction, binomial or digit: `\frac{6}{2}\frac{1}{3}`."""
    follows = re.compile(r"\s*(?=\d|\\frac|\\binom)")
    opened: list[int] = []
    out, start = [], 0
    for match in re.finditer(r"\\.|[{}]", text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            before = text[: opened.pop()].rstrip()
            if (
                before.endswith("}")
                and not re.search(r"[\^_]\s*$", before)
                and (gap := follows.match(text, match.end()))
            ):
                out.append(text[start : match.end()] + " \\cdot ")
                start = gap.end()
    return "".join(out) + text[start:]


def _function(match: re.Match[str]) -> str:
    """The command of an elementary function: a or arc, name, h."""
    return f"\\{'arc' if match[1] else ''}{match[2]}{match[3]} "


def _repeating(whole: str, fixed: str, period: str) -> str:
    """The exact fraction of a repeating decimal."""
    nines = 10 ** len(period) - 1
    top = int((whole or "0") + fixed) * nines + int(period)
    return f"\\frac{{{top}}}{{{nines * 10 ** len(fixed)}}}"


def _degrees(text: str) -> str:
    """Degree signs: pi/180 where a trigonometric function takes the angle, dropped where the angle is the answer."""
    if "^\\circ" not in text:
        return text
    if _TRIGONOMETRY.search(text):
        return _ANGLE.sub(r"(\1 \\cdot \\pi / 180)", text)
    return text.replace("^\\circ", "")

r"""Integer answers without a computer algebra system: text in, canonical digits out, of any size.

Canonical digits are a string (`-73`, `0`), not an int: comparing strings is exact, linear, and free of Python's limit
of 4300 digits on conversion. Accepted around the number: $...$, \( \), \[ \], \text{} and font commands, degree
signs, currency signs, leading zeros, thousands separators (`,` in groups of three, `{,}`, `\,`, `\!`), a trailing
full stop or `.0`, a unit in \text{}, a Chinese measure word, and an assignment to a name (`n = 73`, `m+n = 73`).
Anything that would have to be computed (`7^2`, `\frac{146}{2}`, `73\%`) is not an integer here.
"""

from __future__ import annotations

import re

_TRANSLATE = str.maketrans(
    {
        **{chr(0xFF10 + d): str(d) for d in range(10)},
        **dict.fromkeys("−–—﹣－‐‑", "-"),
        **dict.fromkeys("\u00a0\u2007\u2008\u3000\t\n\r", " "),
        **dict.fromkeys("\u2009\u202f\u2006", "\\,"),
        **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061\u2062", ""),
        "，": ",",
        "。": ".",
        "＋": "+",
        "＝": "=",
        "°": "^\\circ",
    }
)
_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:bf|rm|it|sf|normal)|mbox|boldsymbol|bm|boxed)\s*\{([^{}]*)\}"
)
_UNIT = re.compile(r"\s*\\(?:text(?:rm|normal)?|mathrm|mbox)\s*\{[\s~.]*[^\W\d_][^{}\d]*\}(?:\s*\^\s*\{?[23]\}?)?$")
_NOISE = re.compile(r"\$|\\\$|\\[()\[\]]|\\(?:displaystyle|left|right)(?![A-Za-z])|[€£¥]")
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*$")
_THIN = re.compile(r"(?<=\d)\s*(?:,\\!|\{,\}|\\[,!;: ])\s*(?=\d{3}(?!\d))")
_ASSIGNED = re.compile(r"[A-Za-z\\](?:[A-Za-z\\ {}()+\-]|_\{?\d+\}?|_)*=\s*(.*)", re.DOTALL)
_WHITE = re.compile(r"\s+")
_MEASURE_WORD = re.compile(r"(?<=\d)\s*[\u4e00-\u9fff]{1,3}$")
_NUMBER = re.compile(r"([+-]?)\s*(\d+|\d{1,3}(?:,\d{3})+)(?:\.0*)?")
_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])")

# the longest text read as an integer: far above any real answer, low enough that hostile megabytes cost nothing
MAX_LENGTH = 20_000


def canonical_integer(text: str) -> str | None:
    r"""Canonical digits of the integer that `text` writes; None if it does not write one.

    >>> canonical_integer(r"073"), canonical_integer(r"1\,000"), canonical_integer("73.5")
    ('73', '1000', None)
    """
    if len(text) > MAX_LENGTH:
        return None
    text = _WHITE.sub(" ", _NOISE.sub("", text.translate(_TRANSLATE))).strip()
    text = _SPACES.sub(" ", _THIN.sub("", text)).strip()
    if _UNIT.search(text):
        stripped = _UNIT.sub("", text)
        text = stripped if any(c.isdigit() for c in stripped) else text
    text = _WRAPPER.sub(r"\1", _WRAPPER.sub(r"\1", text))
    text = _DEGREES.sub("", _MEASURE_WORD.sub("", text.rstrip(" .;,")))
    assigned = _ASSIGNED.fullmatch(text)
    if assigned:
        text = assigned.group(1)
    text = text.strip()
    while text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    digits = match.group(2).replace(",", "").lstrip("0") or "0"
    return "-" + digits if match.group(1) == "-" and digits != "0" else digits

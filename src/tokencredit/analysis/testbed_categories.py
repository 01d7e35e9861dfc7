r"""Categories of the tokens of the embedded testbed's solutions (problems/corpus.py), read from the text. OURS.

    Step by step. Then 12+5=17. Then 17*2=34. Answer \boxed{34}

style word (the first word) | connector (every other word) | carried digit (left of an operator) | operator |
operand digit (right of one) | result digit (after =) | boxed digit | punctuation (signs, blanks, the box itself) |
end (a special token: no text) | other. A token has the category of its first character that is no blank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

# later patterns give way to earlier ones
PATTERNS = (
    ("style word", re.compile(r"\A\s*[A-Za-z]+")),
    ("boxed digit", re.compile(r"(?<=\\boxed\{)\d+")),
    ("punctuation", re.compile(r"\\boxed")),
    ("operand digit", re.compile(r"(?<=[-+*])\d+")),
    ("result digit", re.compile(r"(?<==)\d+")),
    ("carried digit", re.compile(r"\d+(?=[-+*])")),
    ("operator", re.compile(r"(?<=\d)[-+*]")),
    ("connector", re.compile(r"[A-Za-z]+")),
    ("punctuation", re.compile(r"[^A-Za-z\d]")),
)
CATEGORIES = (
    "style word", "connector", "carried digit", "operator", "operand digit", "result digit", "boxed digit",
    "punctuation", "end", "other",
)  # fmt: skip


def solution_categories(pieces: Sequence[str]) -> list[str]:
    r"""The category of each token of one response; pieces: each token's text, "" for a special token.

    >>> solution_categories(["Maybe", ".", " Answer", " ", "\\boxed{", "4", "0", "}", ""])[-5:]
    ['punctuation', 'boxed digit', 'boxed digit', 'punctuation', 'end']
    """
    text = "".join(pieces)
    kind = ["other"] * len(text)
    for name, pattern in reversed(PATTERNS):
        for match in pattern.finditer(text):
            kind[match.start() : match.end()] = [name] * (match.end() - match.start())
    found = []
    for piece, end in zip(pieces, accumulate(map(len, pieces)), strict=True):
        first = end - len(piece.lstrip()) if piece.strip() else end - len(piece)
        found.append(kind[first] if piece else "end")
    return found

r"""Multiple-choice answers: the one option letter that a box commits to.

Read: `B`, `b`, `(B)`, `\text{B}`, `\textbf{(B)}\ 27`, `B: text`, `B. text`, `B) text`, `Option B`, `Answer: B`. Not
read: two letters (`A or B`), or a word that happens to start with a letter (`Both`, `A person`).
"""

from __future__ import annotations

import re

_FONT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:bf|rm|it|sf)|mbox|boldsymbol|bm)(?![A-Za-z])\s*")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])|\s+")
_PREFIX = re.compile(
    r"^(?:the\s+)?(?:correct\s+)?(?:final\s+)?(?:option|choice|answer)(?:\s+is)?\s*[:=]?\s*", re.IGNORECASE
)
_LONE = re.compile(r"\(?([A-Za-z])\)?\s*[.:;,]?")
_LABELLED = re.compile(r"(?:\(([A-Z])\)\s*[.:]?|([A-Z])\s*(?:[.:)]|[-–—](?=\s)))\s*(.*)", re.DOTALL)
_MORE_LETTERS = re.compile(
    r"[\s,;/&()]*(?:(?:and|or)(?![A-Za-z]))?[\s,;/&(]*[A-Z](?![A-Za-z])[\s,;/&().]*", re.IGNORECASE
)


def choice_letter(text: str) -> str | None:
    r"""The capital letter of the option `text` names; None if it names none or several.

    >>> choice_letter(r"\text{(B)}"), choice_letter("B: 27 apples"), choice_letter("A or B")
    ('B', 'B', None)
    """
    text = _FONT.sub("", text.replace("$", "")[:2000])
    text = _SPACE.sub(" ", text.replace("{", "").replace("}", "").replace("*", "")).strip()
    text = _PREFIX.sub("", text, count=1).strip()
    lone = _LONE.fullmatch(text)
    if lone:
        return lone.group(1).upper()
    labelled = _LABELLED.fullmatch(text)
    if labelled is None:
        return None
    rest = labelled.group(3)
    if rest and _MORE_LETTERS.fullmatch(rest):
        return None
    return labelled.group(1) or labelled.group(2)

"""Counterfactual perturbations: one number changed, so that the answer changes. The control of SCAPO's ablation
(arXiv 2609.40360): the same construction of credit from perturbations that do NOT keep the answer.

In a synthetic story the new answer is computed, and differs. In other texts only the change of a number can be
checked; an answer that happens to stay the same goes unnoticed there.
"""

from __future__ import annotations

import random
import re

from tokencredit.problems import synthetic
from tokencredit.problems.text import Token, tokens

# A number that stands alone: not part of a decimal, a label (A1), a subscript, a command's name, or 1,000.
_ALONE = re.compile(r"(?<![\w.,:/\\#])\d+(?![\w:/]|[.,]\d)")
_INSIDE = re.compile(r"(?<![\w.,_\\#])(?<!_\{)\d+(?![\w]|[.,]\d)")
_OPAQUE = ("\\begin", "[asy]")  # pictures and tables: a number there may only place a label


def change_number(rng: random.Random, text: str) -> str:
    """`text` with one number moved by 1 to 5 (never below 1); "" where no number can be changed."""
    spots = [spot for token in tokens(text) for spot in _numbers(token)]
    story = synthetic.parse(text)
    drafts = [(start, end, step) for start, end in spots for step in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)]
    rng.shuffle(drafts)
    for start, end, step in drafts:
        number = int(text[start:end]) + step
        changed = f"{text[:start]}{number}{text[end:]}"
        if number >= 1 and (story is None or _answers_differ(story, synthetic.parse(changed))):
            return changed
    return ""


def _answers_differ(before: synthetic.Story, after: synthetic.Story | None) -> bool:
    return after is not None and after.sound and after.answer != before.answer


def _numbers(token: Token) -> list[tuple[int, int]]:
    """(start, end) of the numbers of one token that may change, as offsets into the text."""
    if token.kind == "number":
        pattern = _ALONE
    elif token.kind == "math" and not token.text.startswith(_OPAQUE):
        pattern = _INSIDE
    else:
        return []
    return [(token.start + m.start(), token.start + m.end()) for m in pattern.finditer(token.text)]

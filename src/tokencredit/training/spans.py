"""Which spans of a response CF-GRPO masks (arXiv 2602.09331): arithmetic first, then sentences; and its answer.

Arithmetic: "number op number = number", at most `arithmetic` of them, left to right. Then sentences of at least
`shortest` tokens that are not mostly LaTeX, left to right, until `spans` are found. A span lies in the reasoning
(before the last \\boxed) and has `shortest` to `longest` tokens: shorter ones are passed over, longer ones cut.
OUR RECONSTRUCTION: order, cutting, and "mostly LaTeX" (more than half of the characters outside blanks in $...$,
\\(...\\), \\[...\\] or commands).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from tokencredit.study.methods import SpanCredit

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
ARITHMETIC = re.compile(rf"{NUMBER}\s*(?:[-+*/×÷·−]|\\times|\\cdot|\\div)\s*{NUMBER}\s*=\s*{NUMBER}")
SENTENCE = re.compile(r"[^.!?\n]*(?:\.(?=\d)[^.!?\n]*)*[.!?\n]?")
LATEX = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[A-Za-z]+", re.DOTALL)


def answer_start(pieces: Sequence[str]) -> int | None:
    """Index of the token in which the last \\boxed begins; None where there is none."""
    at = "".join(pieces).rfind("\\boxed")
    return None if at < 0 else _token_at(list(accumulate(map(len, pieces))), at)


def find_spans(pieces: Sequence[str], reasoning: int, settings: SpanCredit) -> list[tuple[int, int]]:
    """Token spans [start, stop) within the first `reasoning` tokens, in the order found.

    pieces: each token's text; the last token of a span is the one that holds its last character.
    """
    text = "".join(pieces[:reasoning])
    ends = list(accumulate(map(len, pieces[:reasoning])))
    found: list[tuple[int, int]] = []
    sums = 0
    for kind, (start, stop) in _candidates(text):
        span = _tokens(ends, start, stop, settings)
        if span is None or span in found or (kind == "sum" and sums >= settings.arithmetic):
            continue
        found.append(span)
        sums += kind == "sum"
        if len(found) == settings.spans:
            break
    return found


def _candidates(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for match in ARITHMETIC.finditer(text):
        yield "sum", match.span()
    for match in SENTENCE.finditer(text):
        if match.group().strip() and not _mostly_latex(match.group()):
            yield "sentence", match.span()


def _mostly_latex(sentence: str) -> bool:
    inside = sum(len("".join(m.split())) for m in LATEX.findall(sentence))
    return inside > len("".join(sentence.split())) / 2


def _tokens(ends: Sequence[int], start: int, stop: int, settings: SpanCredit) -> tuple[int, int] | None:
    first, last = _token_at(ends, start), _token_at(ends, stop - 1) + 1
    last = min(last, first + settings.longest)
    return (first, last) if last - first >= settings.shortest else None


def _token_at(ends: Sequence[int], character: int) -> int:
    """The token that holds a character: the first whose end lies beyond it."""
    return bisect.bisect_right(ends, character)

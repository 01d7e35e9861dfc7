"""Which tokens CF-GRPO masks."""

from __future__ import annotations

import pytest

from tokencredit.study.methods import SpanCredit
from tokencredit.training.spans import answer_start, find_spans

SETTINGS = SpanCredit(kind="spans", shortest=3, longest=8)


def shown(pieces: list[str], spans: list[tuple[int, int]]) -> list[str]:
    return ["".join(pieces[a:b]) for a, b in spans]


def test_arithmetic_comes_first_then_sentences() -> None:
    pieces = list("Tom adds. Then 12+5=17. So it is 17.")
    got = shown(pieces, find_spans(pieces, len(pieces), SETTINGS))
    assert got[0] == "12+5=17"
    assert got[1] == "Tom adds"  # cut to 8 tokens
    assert got[2:] == [" Then 12", " So it i"]


def test_only_the_reasoning_is_searched() -> None:
    pieces = ["1", "+", "1", "=", "2", ". ", "\\boxed{", "2", "}", " or ", "\\boxed", "{", "3", "+", "1", "=", "4", "}"]
    assert answer_start(pieces) == 10, "the last box"
    assert find_spans(pieces, 10, SETTINGS)[0] == (0, 5)
    assert all(stop <= 10 for _, stop in find_spans(pieces, 10, SETTINGS))
    assert answer_start(["no", "box"]) is None
    assert answer_start(["so \\bo", "xed{1}"]) == 0, "the token in which it begins"


@pytest.mark.parametrize(
    "text", ["3.5 - 2 = 1.5", "7 × 8 = 56", r"6 \times 7 = 42", "-4+9=5", "1,200/4=300", r"9 \div 3 = 3"]
)
def test_arithmetic_forms(text: str) -> None:
    pieces = list(f"well {text}; next")
    spans = find_spans(pieces, len(pieces), SpanCredit(kind="spans", shortest=2))
    assert shown(pieces, spans)[0] == text


def test_limits() -> None:
    pieces = list("1+1=2. " * 30)
    spans = find_spans(pieces, len(pieces), SpanCredit(kind="spans", shortest=3))
    assert len(spans) == 10
    assert sum("".join(pieces[a:b]) == "1+1=2" for a, b in spans) == 5
    assert find_spans(pieces, len(pieces), SpanCredit(kind="spans", shortest=8)) == []


def test_mostly_latex_is_no_sentence() -> None:
    pieces = list(r"We get $x^2+y^2=z^2 \cdot 3$. So the number grows.")
    got = shown(pieces, find_spans(pieces, len(pieces), SpanCredit(kind="spans", shortest=3)))
    assert got == [" So the number grows."]


def test_a_decimal_point_does_not_end_a_sentence() -> None:
    pieces = list("It costs 3.50 dollars. Then more.")
    got = shown(pieces, find_spans(pieces, len(pieces), SpanCredit(kind="spans", shortest=3)))
    assert got == ["It costs 3.50 dollars.", " Then more."]


def test_empty_pieces_belong_to_the_character_that_follows() -> None:
    """A byte-level token that does not finish a character has no text."""
    pieces = ["", "é", "=", "1", "+", "1", "=", "2"]
    assert find_spans(pieces, 8, SpanCredit(kind="spans", shortest=2))[0] == (3, 8)

"""Option letters: one letter, however it is dressed."""

from __future__ import annotations

import pytest

from tokencredit.grading import Grader, Item, check_gold
from tokencredit.grading.choice import choice_letter


@pytest.mark.parametrize(
    "text",
    ["B", "b", "(B)", r"\text{B}", r"\text{(B)}", r"\mathrm{B}", r"\textbf{(B)}\ 27", "B: text", "B. some text",
     "B) text", "B.", "Option B",
     "Answer: B", "The answer is B", "$B$", "**B**", r"\mathbf{B}", "B: vitamin C", "(B) 3", r"\text{B: }27",
     "B - yes"],
)  # fmt: skip
def test_one_letter(text: str) -> None:
    assert choice_letter(text) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Both",
        "A or B",
        "A, B",
        "A and C",
        "A/B",
        "(A) and (B)",
        "A person",
        "27",
        r"\frac{B}{2}",
        "ABC",
        "B or not",
    ],
)
def test_none_or_several(text: str) -> None:
    assert choice_letter(text) is None


def test_grading_choices() -> None:
    with Grader(library=False) as grader:
        verdicts = grader.grade([Item("B", f"\\boxed{{{a}}}", "choice") for a in ("B", "(B) 27", "C", "A or B")])
        assert [v.correct for v in verdicts] == [True, True, False, False]
        assert grader.pool.alive == 0
    assert check_gold("(C)", "choice") == ""
    assert check_gold("42", "choice") == "not an option letter"

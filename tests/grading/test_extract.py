"""The last balanced box, and nothing outside it."""

from __future__ import annotations

import time

import pytest

from tokencredit.grading.extract import last_box


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (r"so \boxed{73}", "73"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}} done", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{7}. Mark your solution with \boxed", "7"),
        (r"\boxed{7}. Put it into \boxed{", "7"),
        (r"\boxed{}", ""),
        ("\\boxed{1\n2}", "1\n2"),
        (r"{ \boxed{4} } } }", "4"),
    ],
)
def test_last_balanced_box(response: str, text: str) -> None:
    found = last_box(response)
    assert (found.text, found.status) == (text, "ok")


@pytest.mark.parametrize("response", ["", "73", r"\fbox{5}", r"the \boxed answer is 5", "**73**", r"\box{5}"])
def test_prose_is_no_answer(response: str) -> None:
    assert last_box(response).status == "no_box"


def test_an_open_box_is_no_answer() -> None:
    assert last_box(r"The total is \boxed{54").status == "unclosed"
    assert last_box(r"\boxed{\frac{1}{2}").status == "unclosed"


def test_cut_off_inside_a_box_forgets_the_earlier_one() -> None:
    cut = r"\boxed{3}. Wait: \boxed{4"
    assert last_box(cut, truncated=True).status == "unclosed"
    assert last_box(cut, truncated=False).text == "3"
    assert last_box(r"\boxed{3}. Wait, I should", truncated=True).text == "3"


@pytest.mark.parametrize("piece", [r"\boxed{", r"\boxed{1}", "\\boxed ", r"\boxed{{", "}", "{", "\\", r"\boxed{\{"])
def test_time_is_linear_in_the_length(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    start = time.perf_counter()
    last_box(text)
    assert time.perf_counter() - start < 3

"""Integer answers: the same number in any of its spellings, of any size, and nothing that has to be computed."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tokencredit.grading import Grader, Item, check_gold
from tokencredit.grading.integers import canonical_integer


@pytest.mark.parametrize(
    "text",
    ["73", "073", "73.0", "73.", "73.00", "$73$", r"\text{73}", r"\mathbf{73}", r"73^\circ", r"73^{\circ}", "73°",
     " 73 ",
     r"\$73", "+73", "７３", r"73\text{ cm}", r"73 \text{ dollars}", r"\textbf{73}", "73个", "x = 73", "m+n=73", "{73}",
     r"\(73\)",
     r"73\,", r"\,73", "a_1 = 73"],
)  # fmt: skip
def test_spellings_of_73(text: str) -> None:
    assert canonical_integer(text) == "73"


@pytest.mark.parametrize("text", ["1000", r"1\,000", "1{,}000", "1,000", r"1,\!000", "1000.0", r"1\ 000"])
def test_thousands(text: str) -> None:
    assert canonical_integer(text) == "1000"


@pytest.mark.parametrize(
    "text",
    ["", "73.5", r"73\%", "73%", "7 3", "1 000", "100 200", "1,00", "10,00", "1,000,00", r"\frac{146}{2}", "7^2",
     "5!", "x", "2x=146", "73x", "--73",
     "1e3", "0x49", "7_8", "seventy-three", "73 or 74", "73,74", "NaN", "inf", "²"],
)  # fmt: skip
def test_other_texts_are_no_integers(text: str) -> None:
    assert canonical_integer(text) is None


def test_signs_and_zero() -> None:
    assert canonical_integer("−3") == canonical_integer("-3") == canonical_integer("-003.0") == "-3"
    assert canonical_integer("-0") == canonical_integer("000") == "0"


def test_any_size() -> None:
    huge = "9" * 15_000
    assert canonical_integer("0" + huge) == huge
    with Grader(library=False) as grader:
        same, other = grader.grade(
            [Item(huge, f"\\boxed{{{huge}}}", "integer"), Item(huge, f"\\boxed{{{huge[:-1]}8}}", "integer")]
        )
    assert same.correct
    assert not other.correct


def test_int_agrees_on_random_numbers() -> None:
    rng = random.Random(5)
    for _ in range(500):
        number = rng.randrange(-(10**18), 10**18)
        text = rng.choice(
            [str(number), f"{number:,}", f"{number}.0", f"${number}$", f"{number:025d}", f"\\text{{{number}}}"]
        )
        assert canonical_integer(text) == str(number)


def test_integers_import_no_computer_algebra() -> None:
    code = (
        "import sys; from tokencredit.grading import *; import tokencredit.grading.command\n"
        r"g = Grader(workers=2); v = g.grade([Item('073', r'\boxed{73}', 'integer')] * 3 + [Item('5', r'\boxed{5}')])"
        "\n"
        "assert all(x.correct for x in v) and g.pool.alive <= 1, v\n"
        r"g2 = Grader(library=False); g2.grade([Item('5', r'\boxed{x^2}', 'integer'), Item('B', r'\boxed{(B)}', 'choice')])"
        "\n"
        "assert g2.pool.alive == 0 and check_gold('7', 'integer') == ''\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('sympy', 'math_verify', 'latex2sympy2_extended')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_check_gold_of_integers() -> None:
    assert check_gold("073", "integer") == ""
    assert check_gold(r"\frac12", "integer") == "not an integer"
    assert check_gold("  ", "integer") == "empty"

"""Tokens of problem texts: lossless, and mathematics in one piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencredit.problems.text import is_english, ordinary, problem_id, role, sentence_count, tokens


@given(st.text(alphabet=st.sampled_from("ab $\\[](){}1.,'\n-é数_^<"), max_size=60))
def test_tokens_are_lossless(text: str) -> None:
    assert "".join(t.text for t in tokens(text)) == text
    assert all(text[t.start : t.end] == t.text for t in tokens(text))


@pytest.mark.parametrize(
    "math",
    [
        "$x^2$",
        "$$\\sum_{k} k$$",
        "\\( y = 3 \\)",
        "\\[ a \\le b \\]",
        "\\begin{align*}a&=b\\\\c&=d\\end{align*}",
        "[asy] draw((0,0)--(1,1)); [/asy]",
        "$5 \\text{ apples and pears}$",
        "$\\$3.50$",
    ],
)
def test_mathematics_is_one_token(math: str) -> None:
    found = [t for t in tokens(f"Find the sum of {math} now.") if t.kind == "math"]
    assert [t.text for t in found] == [math]


def test_money_is_not_mathematics() -> None:
    text = "Eggs cost $2 per dozen here. She pays $4.50 for them, or $1,000 in all."
    assert [t.text for t in tokens(text) if t.kind == "number"] == ["$2", "$4.50", "$1,000"]
    assert not [t for t in tokens(text) if t.kind == "math"]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("12", "number"), ("3.5%", "number"), ("three", "number word"), ("miles", "unit"), ("prime", "keyword"),
        ("least", "logic"), ("x", "variable"), ("ABC", "label"), ("Mary", "name"), ("garden", "word"),
        ("<", "comparison"), ("\\alpha", "markup"),
    ],
)  # fmt: skip
def test_roles(word: str, wanted: str) -> None:
    items = tokens(f"We saw {word} there.")
    assert role(items, [t.text for t in items].index(word)) == wanted


def test_an_unknown_capital_at_the_start_is_taken_for_a_name_unless_the_text_shows_it_is_none() -> None:
    assert role(tokens("Xenia thinks of it."), 0) == "name"
    assert role(tokens("Gardens are large."), 0) == "name"
    assert role(tokens("Gardens are large, and gardens grow."), 0) == "word"


def test_ordinary_words_only_outside_compounds_and_mathematics() -> None:
    text = "The x-axis and warm-up words in $some garden$ near Mary grow."
    items = tokens(text)
    assert {t.text for i, t in enumerate(items) if ordinary(items, i)} == {"words", "near", "grow"}


def test_sentence_count() -> None:
    assert sentence_count(tokens("Tom has 3.5 kg. He eats it! Why? See $a.b$")) == 4


def test_problem_id_ignores_white_space_and_minds_choices() -> None:
    assert problem_id("a  b\n") == problem_id("a b") != problem_id("ab")
    assert problem_id("a", ["1", "2"]) != problem_id("a", ["2", "1"]) != problem_id("a")


def test_is_english() -> None:
    assert is_english("Compute $x$.")
    assert not is_english("已知 $x=1$, 求 $x$ 的值.")
    assert not is_english("$\\text{only mathematics}$")

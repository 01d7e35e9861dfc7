"""The testbed's token categories against what its own solutions are made of."""

from __future__ import annotations

import random
import re

import pytest

from tokencredit.analysis.testbed_categories import CATEGORIES, solution_categories
from tokencredit.problems import corpus, synthetic


def split(text: str) -> list[str]:
    """As the testbed's tokenizer splits, before merging: words with their blank, digits and signs one by one."""
    return re.findall(r"\\boxed\{| ?[A-Za-z]+|\d|[^A-Za-z\d]", text)


def test_every_character_of_a_hand_made_solution() -> None:
    text = r"Step by step. Then 12+5=17. Answer \boxed{17}"
    pieces = split(text)
    assert "".join(pieces) == text
    found = list(zip(pieces, solution_categories(pieces), strict=True))
    assert found == [
        ("Step", "style word"), (" by", "connector"), (" step", "connector"), (".", "punctuation"),
        (" Then", "connector"), (" ", "punctuation"), ("1", "carried digit"), ("2", "carried digit"),
        ("+", "operator"), ("5", "operand digit"), ("=", "punctuation"), ("1", "result digit"),
        ("7", "result digit"), (".", "punctuation"), (" Answer", "connector"), (" ", "punctuation"),
        ("\\boxed{", "punctuation"), ("1", "boxed digit"), ("7", "boxed digit"), ("}", "punctuation"),
    ]  # fmt: skip


@pytest.mark.parametrize("style", corpus.OPENING)
def test_counts_follow_from_the_story(style: str) -> None:
    """Digits of each kind, counted from the equations that the style writes."""
    rng = random.Random(5)
    for _ in range(50):
        story = synthetic.draw_story(rng, 3)
        pieces = split(corpus.solution(story, style, rng, slip=0.3, drop=0.5, right_guess=0.5))
        found = solution_categories(pieces)
        counts = {name: found.count(name) for name in CATEGORIES}
        text = "".join(pieces)
        equations = re.findall(r"(\d+)([-+*])(\d+)=(\d+)", text)
        assert counts["style word"] == 1
        assert counts["operator"] == len(equations)
        for place, name in enumerate(("carried digit", "", "operand digit", "result digit")):
            assert not name or counts[name] == sum(len(e[place]) for e in equations)
        assert counts["boxed digit"] == len(re.search(r"\\boxed\{(\d+)\}", text).group(1))
        assert counts["other"] == counts["end"] == 0
        assert set(found) <= set(CATEGORIES)


def test_cut_off_and_special_tokens() -> None:
    assert solution_categories(["Maybe", ".", " 1", ""]) == ["style word", "punctuation", "other", "end"]
    assert solution_categories(["", "Quickly"]) == ["end", "style word"]
    assert solution_categories([]) == []

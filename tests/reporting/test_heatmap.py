"""Token heat maps: what is shaded, and that no text of a model can leave its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tokencredit.reporting.heatmap import Block, Chapter, Response, render, scale, spans, visible


def token(piece: str, **more: Any) -> dict[str, Any]:
    return {"piece": piece, "category": "word", "credit": 0.5, "drift": None, "entropy": 0.1, "logprob": -0.5, **more}


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=y>',
    "&amp;",
    "\u202edesrever",
    "'",
    "\x00\x1b[31m",
    "</i></p>",
]


class Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.last = dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_text_stays_text() -> None:
    page = render(
        "m",
        [
            Chapter(
                "t",
                "x",
                [Block(HOSTILE[0], [("typo_noise", HOSTILE[1])], [Response("GRPO", "n", [token(t) for t in HOSTILE])])],
            )
        ],
    )
    parts = Parts()
    parts.feed(page)
    assert parts.tags.count("script") == 1, "the page's own"
    assert "img" not in parts.tags
    assert parts.tags.count("i") == len(HOSTILE)
    assert "\u202e" not in page
    assert "⟨U+202E⟩desrever" in page
    assert "\x00" not in page and "\x1b" not in page
    assert "alert(1)" in "".join(parts.text)


def test_every_token_has_its_numbers_and_its_shade() -> None:
    text = spans(
        [token("a", credit=2.0), token("b", credit=-1.0, drift=0.25), token("c", credit=0.0)],
        {"credit": 2.0, "drift": 0.5, "entropy": None},
    )
    first, second, third = re.findall(r"<i.*?</i>", text)
    assert "--credit:1.00" in first and 'class="cp"' in first
    assert "--credit:-0.50" in second and "--drift:0.50" in second and 'class="cn"' in second
    assert "class" not in third
    assert "credit -1; drift 0.25; p 0.6065" in second
    assert "entropy" not in text, "no scale: not known in this study"


def test_values_beyond_the_scale_are_full() -> None:
    assert "--credit:1.00" in spans([token("a", credit=9.0)], {"credit": 2.0})
    assert "nan" not in spans([token("a", credit=float("nan"))], {"credit": 2.0}).lower()


def test_scale_is_the_98th_percentile() -> None:
    assert scale([float(v) for v in range(101)]) == 98.0
    assert scale([-4.0, None, 2.0]) == 2.0
    assert scale([None, None]) is None
    assert scale([0.0, 0.0]) == 1.0


def test_what_cannot_be_seen_is_shown() -> None:
    assert "¶" in visible("a\n\n") and visible("a\n\n").count("¶") == 2
    assert "·" in visible("")
    assert visible(" x") == " x"


def test_a_page_without_anything_says_so() -> None:
    page = render("m", [])
    assert "nothing to show yet" in page
    assert "<input" not in page


@pytest.mark.parametrize("count", [20_001])
def test_a_long_answer_is_cut_and_says_so(count: int) -> None:
    text = spans([token("a")] * count, {"credit": 1.0})
    assert text.count("<i") == 20_000
    assert "1 more tokens" in text


def test_nothing_is_fetched() -> None:
    page = render("m", [Chapter("t", "x", [Block("p", [], [Response("GRPO", "n", [token("a")])])])])
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert "@import" not in page

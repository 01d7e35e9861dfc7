"""Token heat maps: how tokens are shown, and that no text of a model can leave its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tokencredit.reporting.heatmap import LEVELS, longest, render, scale, spans, visible
from tokencredit.reporting.heatmap_sources import Block, Chapter, Response


def token(piece: str, **more: Any) -> dict[str, Any]:
    return {"piece": piece, "category": "word", "credit": 0.5, "drift": None, "entropy": 0.1, "logprob": -0.5, **more}


def response(tokens: list[dict[str, Any]], **more: Any) -> Response:
    return Response("GRPO", "n", tokens, **more)


def page_of(*responses: Response, problem: str = "p", rewordings: Any = ()) -> str:
    return render("m", [Chapter("t", "x", [Block(problem, rewordings, responses)])])


def spans_of(tokens: list[dict[str, Any]], scales: dict[str, float | None], cap: int = 99, **more: Any) -> str:
    return spans(response(tokens, **more), scales, ["number", "word"], cap)


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=y>',
    "&amp;",
    "\u202edesrever",
    "'",
    "\x00\x1b[31m",
    "</i></p>",
    "a\u2028b\u00ad",
]


class Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.attributes: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Parts:
    parts = Parts()
    parts.feed(page)
    return parts


def test_hostile_text_stays_text() -> None:
    hostile = response([token(t) for t in HOSTILE], method=HOSTILE[1])
    other = Response(HOSTILE[0], HOSTILE[6], [token("a")], method="b")
    page = page_of(hostile, other, problem=HOSTILE[0], rewordings=[("typo_noise", HOSTILE[1])])
    parts = read(page)
    assert parts.tags.count("script") == 1, "the page's own"
    assert "img" not in parts.tags
    assert parts.tags.count("i") == len(HOSTILE) + 1
    assert not any(name.startswith("on") for found in parts.attributes for name in found)
    assert not any(c in page for c in "\u202e\u2028\u00ad\x00\x1b")
    assert "⟨U+202E⟩desrever" in page
    assert "alert(1)" in "".join(parts.text)


def test_what_is_shown_is_the_text_of_the_answer() -> None:
    pieces = ["So", " 1<2", "", "\n", " 数学 🎉", "&"]
    parts = read(page_of(response([token(t) for t in pieces])))
    assert "So 1<2·¶\n 数学 🎉&" in "".join(parts.text)


def test_every_token_has_its_numbers_and_its_shade() -> None:
    text = spans_of(
        [token("a", credit=2.0), token("b", credit=-1.0, drift=0.25), token("c", credit=0.0)],
        {"credit": 2.0, "drift": 0.5, "entropy": None},
    )
    first, second, third = re.findall(r"<i.*?</i>", text)
    assert f'class="c{LEVELS}"' in first
    assert f'class="k{LEVELS // 2} d{LEVELS // 2}"' in second, "below 0 has colours of its own"
    assert "class" not in third
    # category, credit, effect, drift, margin, entropy, p
    assert 'data-n="1|-1||0.25||0.1|0.6065"' in second


def test_values_beyond_the_scale_are_full_and_unknown_ones_bare() -> None:
    assert f'class="c{LEVELS}"' in spans_of([token("a", credit=9.0)], {"credit": 2.0})
    assert "class" not in spans_of([token("a", credit=float("nan"))], {"credit": 2.0})
    assert "class" not in spans_of([token("a", credit=None)], {"credit": 2.0})


def test_an_effect_stands_where_credit_is_asked_for() -> None:
    """Shaded on the effect's own scale; the numbers say it is the effect."""
    tokens = [token("a", credit=None, effect=-0.2)]
    text = spans_of(tokens, {"credit": 2.0, "effect": 0.4}, stand_in="effect")
    assert f"k{LEVELS // 2} f{LEVELS // 2}" in text
    assert 'data-n="1||-0.2||' in text


def test_drift_of_each_kind_is_told() -> None:
    """|p0 - pk| over the mean of both: 1/2 and 1/4 give 2/3."""
    tokens = [token("a", logprob=-0.6931471805599453, perturbed={"typo_noise": -1.3862943611198906})]
    assert "|typo_noise 0.667" in spans_of(tokens, {})


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
    assert "<input" not in page and "<script" not in page


@pytest.mark.parametrize(
    ("lengths", "room"), [([5], 10), ([10, 20, 30], 45), ([10, 20, 30], 60), ([7, 7, 7], 20), ([1, 1], 1), ([], 9)]
)
def test_the_longest_cut_that_fits(lengths: list[int], room: int) -> None:
    cap = longest(lengths, room)
    assert cap == 1 or sum(min(n, cap) for n in lengths) <= room
    if lengths and cap < max(lengths):
        assert sum(min(n, cap + 1) for n in lengths) > room


def test_a_cut_answer_says_so() -> None:
    text = spans_of([token("a")] * 25, {"credit": 1.0}, cap=20)
    assert text.count("<i") == 20
    assert "5 more tokens" in text


def test_answers_of_16k_tokens_make_a_page_of_bounded_size() -> None:
    one = token(" word", credit=0.1234567, drift=0.0123456, margin=0.987654, entropy=0.0234567)
    page = page_of(*(response([one] * 16_384, method=m) for m in ("a", "b")))
    assert page.count("<i ") == 2 * 16_384
    assert len(page) < 110 * page.count("<i ")


def test_methods_can_be_told_apart() -> None:
    page = page_of(response([token("a")], method="grpo"), Response("MCPO", "n", [token("a")], method="mcpo"))
    assert page.count('name="m"') == 3, "all, and one each"
    assert 'class="of m0"' in page and 'class="of m1"' in page
    assert 'name="m"' not in page_of(response([token("a")], method="grpo"))


def test_nothing_is_fetched() -> None:
    page = page_of(response([token("a")]))
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert "@import" not in page and "url(" not in page

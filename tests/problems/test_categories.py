"""Token categories: the facts of the paper, and the edges of our choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokencredit.problems.categories import CATEGORIES, REFLECTION, Categoriser, own_connectives
from tokencredit.study import UserError

CASES = {
    "reflection marker": ["wait", " Wait", "Hmm,", "however", "But", " maybe", "(check", "OTHER", "now.", "\n oh"],
    "discourse connective": [" because", "Therefore", "thus,", "and", "So", " if", "Then", "although"],
    "math symbol": [
        "\\frac",
        "\\boxed{",
        "\\",
        " +",
        "=",
        "<=",
        "**",
        "-",
        "×",
        "≤",
        "$",
        "^",
        "_",
        "$$",
        "\\text",
        "−",
        " -",
        "{",
        "}",
        "}{",
        ")$",
        "$,",
        ").$",
        "=(",
        "-(",
        "(\\frac",
        " ≈ ",
        "\\\n",
        "**:",
        "…",
    ],
    "number": ["7", " 42", "-3", "+5", "3.14", "50%", "1,000", "12.", ".5", "−8", "３", "(9", "-2.5%", "５０％", "7)."],
    "word": [
        "apple",
        " Tom",
        "x",
        "ever",
        "don't",
        "x2",
        "2nd",
        "naïve",
        "数学",
        "I'm",
        "a)",
        "how",
        "βx",
        "x=",
        "12cm",
    ],
    "punctuation": [".", ",", "(", ")", "?", '"', "。", "，", ")).", "[", ":", "“", "，\n", "!?", "、", "）。"],
    "whitespace-only": [" ", "\n", "\n\n", "\t ", "\u3000"],
    "other": ["", "🎉", "\u200b", "©", "\ufffd", "½", "£", "12:30"],
}


@pytest.mark.parametrize(("category", "text"), [(c, t) for c, texts in CASES.items() for t in texts])
def test_category(category: str, text: str) -> None:
    assert Categoriser().of(text) == category


def test_every_text_has_exactly_one_known_category() -> None:
    of = Categoriser().of
    seen = {of(chr(c)) for c in range(0x2FFF)}
    assert seen <= set(CATEGORIES)


def test_a_word_split_over_tokens_is_classed_piece_by_piece() -> None:
    of = Categoriser().of
    assert [of(" however"), of(" how"), of("ever")] == ["reflection marker", "word", "word"]


def test_lists() -> None:
    assert len(REFLECTION) == 16
    words = own_connectives()
    assert 75 <= len(words) <= 100
    assert all(w == w.casefold() and " " not in w for w in words)


LEXICON = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon><entry id="k1" word="albeit"><orths>
<orth type="cont"><part type="single">Albeit</part></orth>
<orth type="cont"><part type="phrasal">even though</part></orth>
<orth type="discont"><part type="single">either</part><part type="single">or</part></orth>
</orths></entry></lexicon>"""


def test_a_lexicon_replaces_our_list(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.xml"
    path.write_text(LEXICON)
    categoriser = Categoriser(path)
    assert categoriser.connectives == {"albeit"}
    assert categoriser.of(" Albeit,") == "discourse connective"
    assert categoriser.of("because") == "word"
    assert categoriser.of("but") == "reflection marker"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("not xml", "not XML"),
        ("<a><b/></a>", "is it DiMLex-Eng"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "declares the XML entity 'x'"),
        ('<!DOCTYPE a [<!ENTITY % x "y">]><a/>', "declares the XML entity 'x'"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hosts">]><a>&x;</a>', "declares the XML entity 'x'"),
    ],
)
def test_what_is_no_lexicon_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "lexicon.xml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=said):
        Categoriser(path)


def test_entities_are_refused_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.xml"
    path.write_bytes('<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>'.encode("utf-16"))
    with pytest.raises(UserError, match="declares the XML entity 'x'"):
        Categoriser(path)


def test_spellings_straight_below_an_entry_and_namespaces_are_read(tmp_path: Path) -> None:
    """Lexica of the family differ in whether <orth>s stand within <orths>, and in their namespace."""
    path = tmp_path / "lexicon.xml"
    path.write_text('<l xmlns="http://x"><entry><orth><part type="single">albeit</part></orth></entry></l>')
    assert Categoriser(path).connectives == {"albeit"}

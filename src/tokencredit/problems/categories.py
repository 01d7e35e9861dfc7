"""Eight exclusive categories of response tokens (SCAPO, arXiv 2609.40360, section 3), by its text alone.

The first that matches, in this order: reflection marker (16 words), discourse connective (one word), math symbol
(begins with a backslash, or only signs of mathematics), number (signed integer, decimal, percentage), word (has a
letter), punctuation (only Unicode P*), whitespace-only, other. Case, surrounding blanks and edge punctuation do not
matter for words and numbers. A word split over tokens is classed piece by piece, as the paper classes tokens.
OUR CHOICES: the list of connectives (connectives.txt; a user's own DiMLex-Eng can replace it), and which signs count
as mathematics: those of Unicode's class Sm and - * / ^ _ $ & | ~ # and their full-width and typographic kin.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

from tokencredit.study.errors import UserError

CATEGORIES = (
    "reflection marker", "discourse connective", "word", "punctuation", "math symbol", "number", "whitespace-only",
    "other",
)  # fmt: skip
REFLECTION = frozenset(
    ("again", "ah", "alternative", "alternatively", "another", "any", "but", "check", "hmm", "however", "maybe", "now",
     "oh", "other", "verify", "wait")
)  # fmt: skip
SIGNS = frozenset("-*/^_$&|~#·•∙⋅−–×÷°′″‖…⟨⟩⌊⌋⌈⌉∎")
NUMBER = re.compile(r"[+\-−]?(\d+|\d{1,3}(,\d{3})+)?([.,]?\d+)?\s*[%％]?")


class Categoriser:
    """Texts of tokens to categories, with one list of connectives."""

    def __init__(self, connectives: Path | str | None = None):
        """connectives: a DiMLex-Eng XML file in place of our list. Raises UserError where it is not one."""
        words = read_dimlex(Path(connectives)) if connectives else own_connectives()
        self.connectives = words - REFLECTION
        self.of = lru_cache(maxsize=200_000)(self._of)

    def _of(self, text: str) -> str:
        """The category of one token's text; "" (a special token, or half a character) is other."""
        bare = text.strip()
        if not bare:
            return "whitespace-only" if text else "other"
        word = _without_edges(bare).casefold()
        if word in REFLECTION:
            return "reflection marker"
        if word in self.connectives:
            return "discourse connective"
        if bare.startswith("\\") or all(_is_sign(c) for c in bare):
            return "math symbol"
        if any(c.isdigit() for c in bare) and (NUMBER.fullmatch(bare) or NUMBER.fullmatch(word)):
            return "number"
        if any(c.isalpha() for c in bare):
            return "word"
        if all(unicodedata.category(c).startswith("P") for c in bare):
            return "punctuation"
        return "other"


def _is_sign(c: str) -> bool:
    return c in SIGNS or unicodedata.category(c) == "Sm"


def _without_edges(text: str) -> str:
    """Without punctuation at both ends; a sign or a percent that belongs to a number stays for NUMBER to judge."""
    start, stop = 0, len(text)
    while start < stop and unicodedata.category(text[start]).startswith("P"):
        start += 1
    while stop > start and unicodedata.category(text[stop - 1]).startswith("P"):
        stop -= 1
    return text[start:stop]


def own_connectives() -> frozenset[str]:
    """The packaged list."""
    lines = resources.files("tokencredit.problems").joinpath("connectives.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def read_dimlex(path: Path) -> frozenset[str]:
    """Single-word connectives of a lexicon in DiMLex's XML: <entry>s of <orth>s, each of <part>s.

    Raises UserError where the file is missing, not XML, or holds no such entry.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"connectives: {path}: cannot be read ({error.strerror})") from None
    if b"<!ENTITY" in text:
        raise UserError(f"connectives: {path}: defines XML entities; a lexicon has no need of them")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise UserError(f"connectives: {path}: not XML ({error}); a copy of DiMLex-Eng is expected") from None
    found = set()
    for orth in root.iterfind(".//entry//orth"):
        parts = [" ".join((part.text or "").split()) for part in orth.iterfind("part")]
        if len(parts) == 1 and parts[0] and " " not in parts[0]:
            found.add(parts[0].casefold())
    if not found:
        raise UserError(f"connectives: {path}: no <entry> with an <orth> of one <part>; is it DiMLex-Eng?")
    return frozenset(found)

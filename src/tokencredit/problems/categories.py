"""Eight exclusive categories of response tokens (SCAPO, arXiv 2609.40360, section 3), by its text alone.

The first that matches, in this order: reflection marker (16 words), discourse connective (one word), math symbol
(begins with a backslash, or only signs), number (signed integer, decimal, percentage), word (has a letter), punctuation
(only Unicode P*), whitespace-only, other. Case, surrounding blanks and edge punctuation do not matter. A word split
over tokens is classed piece by piece, as the paper classes tokens: "how" + "ever" are two words.
OUR CHOICES: the list of connectives (connectives.txt; a user's own DiMLex-Eng can replace it), and what is a sign:
Unicode's class Sm, - * / and kin, and the characters that LaTeX reserves, braces among them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers.expat import ExpatError, ParserCreate

from tokencredit.study.errors import UserError

CATEGORIES = (
    "reflection marker", "discourse connective", "word", "punctuation", "math symbol", "number", "whitespace-only",
    "other",
)  # fmt: skip
REFLECTION = frozenset(
    ("again", "ah", "alternative", "alternatively", "another", "any", "but", "check", "hmm", "however", "maybe", "now",
     "oh", "other", "verify", "wait")
)  # fmt: skip
SIGNS = frozenset("-*/\\^_$&|~#{}·•∙⋅−–×÷°′″‖…⟨⟩⌊⌋⌈⌉∎")
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
        word = _without_edges(bare, _is_punctuation).casefold()
        if word in REFLECTION:
            return "reflection marker"
        if word in self.connectives:
            return "discourse connective"
        signs = _without_edges(bare, lambda c: _is_punctuation(c) and not _is_sign(c))
        if signs.startswith("\\") or (signs and all(map(_is_sign, signs))):
            return "math symbol"
        if any(c.isdigit() for c in bare) and (NUMBER.fullmatch(bare) or NUMBER.fullmatch(word)):
            return "number"
        if any(c.isalpha() for c in bare):
            return "word"
        if all(map(_is_punctuation, bare)):
            return "punctuation"
        return "other"


def _is_sign(c: str) -> bool:
    return c in SIGNS or unicodedata.category(c) == "Sm"


def _is_punctuation(c: str) -> bool:
    return unicodedata.category(c).startswith("P")


def _without_edges(text: str, edge: Callable[[str], bool]) -> str:
    """Without the characters at both ends that are `edge`."""
    start, stop = 0, len(text)
    while start < stop and edge(text[start]):
        start += 1
    while stop > start and edge(text[stop - 1]):
        stop -= 1
    return text[start:stop]


def own_connectives() -> frozenset[str]:
    """The packaged list."""
    lines = resources.files("tokencredit.problems").joinpath("connectives.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def read_dimlex(path: Path) -> frozenset[str]:
    """Connectives of one word from a lexicon in DiMLex's XML: <entry>s of <orth>s (spellings), each of <part>s.

    Raises UserError where the file is missing, not XML, or holds no such entry.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"connectives: {path}: cannot be read ({error.strerror})") from None
    try:
        _refuse_entities(text, path)
        root = ElementTree.fromstring(text)
    except (ExpatError, ElementTree.ParseError, LookupError) as error:
        raise UserError(f"connectives: {path}: not XML ({error}); a copy of DiMLex-Eng is expected") from None
    found = set()
    for orth in root.iterfind(".//{*}entry//{*}orth"):
        parts = [" ".join((part.text or "").split()) for part in orth.iterfind("{*}part")]
        if len(parts) == 1 and parts[0] and " " not in parts[0]:
            found.add(parts[0].casefold())
    if not found:
        raise UserError(f"connectives: {path}: no <entry> with an <orth> of one <part>; is it DiMLex-Eng?")
    return frozenset(found)


def _refuse_entities(text: bytes, path: Path) -> None:
    """Entities can blow a small file up to gigabytes; a lexicon needs none."""

    def declared(name: str, *_: object) -> None:
        raise UserError(f"connectives: {path}: declares the XML entity '{name}'; a lexicon has no need of it")

    parser = ParserCreate()
    parser.EntityDeclHandler = declared
    parser.Parse(text, True)

r"""Problem text as tokens: what is mathematics, what is a number, what is an ordinary word.

Everything that must survive a perturbation (spec of SCAPO's semifactuals, arXiv 2609.40360, section 2) is
found here once, so that the rules that write perturbations and the validator that checks them agree.

`tokens(text)` is lossless: the texts of the tokens joined give the text back. Kinds of token:

    math    $..$, $$..$$, \(..\), \[..\], \begin{x}..\end{x}, [asy]..[/asy]   one token each, verbatim
    markup  a LaTeX command in prose (\textbf, \%), a BBCode tag ([list]), a URL
    number  anything with a digit outside mathematics: 12, 1,000, 3.5%, 5:30, 2nd, $4 (currency)
    word    letters, with inner apostrophes
    symbol  operators, comparison signs, brackets, hyphens, and whatever else is neither word nor mark
    mark    sentence punctuation , . ; : ? ! and quotes
    space   white space
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokencredit.problems import lexicon


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int  # offset in characters

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_MATH = re.compile(
    r"\$\$.+?\$\$"
    r"|\\\[.+?\\\]"
    r"|\\\(.+?\\\)"
    r"|\\begin\{(?P<env>[A-Za-z]+\*?)\}.*?\\end\{(?P=env)\}"
    r"|\[asy\].*?\[/asy\]",
    re.DOTALL,
)
_INLINE = re.compile(r"\$(?:\\.|[^$\\])+\$", re.DOTALL)
_CURRENCY = re.compile(r"\$\d[\d,]*(?:\.\d+)?")
_REST = re.compile(
    r"(?P<markup>https?://\S+|\\[A-Za-z]+\*?|\\.|\[/?[a-z*]+\])"
    r"|(?P<number>(?<![^\W_])\.\d\w*%?|[^\W\d_]*\d\w*(?:[.,:/]\d\w*)*%?)"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)"
    r"|(?P<space>\s+)"
    r"|(?P<mark>[,.;:?!'\"“”‘’…—])"
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_COMMAND = re.compile(r"\\[A-Za-z]+\s*(?:\{[^{}]*\})?")
_PLAIN_WORD = re.compile(r"[a-z]{3,}")


def normalise_space(text: str) -> str:
    """Runs of white space become one space; none at the ends.

    >>> normalise_space("a \\n b ")
    'a b'
    """
    return " ".join(text.split())


def problem_id(problem: str, choices: Sequence[str] = ()) -> str:
    """16 hex digits: SHA-256 of the white-space-normalised text, and of the choices where there are any."""
    parts = [normalise_space(problem), *(normalise_space(c) for c in choices)]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:16]


def _is_prose(content: str) -> bool:
    """Whether the text between two dollar signs reads as prose, so that the first sign meant money."""
    if "\n\n" in content:
        return True
    return len(_PLAIN_WORD.findall(_COMMAND.sub(" ", content))) >= 2


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[Token, ...]:
    """Lossless tokens of `text`; see the module's table of kinds.

    >>> [t.text for t in tokens("Add $x^2$ to 1,000.") if t.kind != "space"]
    ['Add', '$x^2$', 'to', '1,000', '.']
    """
    out: list[Token] = []
    at = 0
    while at < len(text):
        kind, piece = _next(text, at)
        out.append(Token(kind, piece, at))
        at += len(piece)
    return tuple(out)


def _next(text: str, at: int) -> tuple[str, str]:
    if text[at] in "$\\[" and (found := _MATH.match(text, at)):
        return "math", found.group()
    if text[at] == "$":
        money, inline = _CURRENCY.match(text, at), _INLINE.match(text, at)
        if money and (inline is None or _is_prose(inline.group()[1:-1])):
            return "number", money.group()
        if inline:
            return "math", inline.group()
    found = _REST.match(text, at)
    assert found is not None  # the last alternative takes any character
    assert found.lastgroup is not None
    return found.lastgroup, found.group()


def starts_sentence(items: Sequence[Token], i: int) -> bool:
    """Whether token i opens a sentence: first, or after a stop, a colon, a quote, a line break."""
    for back in reversed(items[:i]):
        if back.kind == "space":
            if "\n" in back.text:
                return True
            continue
        if back.kind == "mark":
            return back.text in ".?!:…\"“'‘"
        if back.kind == "math":
            return back.text.rstrip("$)]\\ \n}").endswith((".", "?")) or back.text.startswith(("\\[", "$$", "\\begin"))
        return back.kind == "markup" or back.text in "()*-•"
    return True


def role(items: Sequence[Token], i: int) -> str:
    """Why token i is protected, or "word" (ordinary), or "" (white space and marks, free to change).

    Roles: math, markup, number, number word, comparison, keyword, unit, logic, variable, label, name, symbol.
    """
    token = items[i]
    if token.kind in ("space", "mark"):
        return ""
    if token.kind == "symbol":
        return "comparison" if token.text in lexicon.COMPARISON else "symbol"
    if token.kind != "word":
        return token.kind
    return _word_role(items, i, token.text)


def _word_role(items: Sequence[Token], i: int, word: str) -> str:
    low = word.lower()
    if len(word) == 1 and word not in ("a", "A", "I"):
        return "variable"
    if word == "A" and not starts_sentence(items, i):
        return "variable"
    if len(word) > 1 and word.isupper():
        return "label"
    if not word.isascii() and not any(c in "’" for c in word):
        return "name"
    for group, name in (
        (lexicon.NUMBER_WORDS, "number word"),
        (lexicon.LOGIC, "logic"),
        (lexicon.UNITS, "unit"),
        (lexicon.KEYWORDS, "keyword"),
    ):
        if low in group:
            return name
    if word[0].isupper() and not (starts_sentence(items, i) and _is_common(items, low)):
        return "name"
    return "word"


def _is_common(items: Sequence[Token], low: str) -> bool:
    """A capital at the start of a sentence names nobody if the word is known, or stands in lower case elsewhere."""
    return low in lexicon.COMMON or any(t.text == low for t in items if t.kind == "word")


def ordinary(items: Sequence[Token], i: int) -> bool:
    """Whether token i is an ordinary English word that may carry a typo: ASCII, at least four letters (or "the"),
    lower case (or a known opening word such as "What"), not protected, and not glued to something else by a
    hyphen, a slash or the like."""
    token = items[i]
    word = token.text
    if token.kind != "word" or not (word.isascii() and word.isalpha()):
        return False
    if len(word) < 4 and word not in lexicon.MISSPELLABLE:
        return False
    if not word.islower() and not (word[1:].islower() and word.lower() in lexicon.STARTERS - lexicon.ASKING):
        return False
    part = role(items, i)
    if part != "word" and not (part == "logic" and len(word) >= 7):  # "different" can't be misread, "less" can
        return False
    if not set(word.lower()) & set("aeiouy"):
        return False
    neighbours = [items[j] for j in (i - 1, i + 1) if 0 <= j < len(items)]
    return all(t.kind in ("space", "mark") for t in neighbours)


def is_english(text: str) -> bool:
    """Whether the prose (outside mathematics) has words of three letters or more, most of them ASCII."""
    words = [t.text for t in tokens(text) if t.kind == "word"]
    plain = sum(w.isascii() and len(w) >= 3 for w in words)
    return plain > sum(not w.isascii() for w in words)


def sentence_count(items: Sequence[Token]) -> int:
    """Sentences by their closing marks (. ? ! before white space or the end)."""
    count, open_ = 0, False
    for i, token in enumerate(items):
        last = i + 1 == len(items)
        if token.kind == "mark" and token.text in ".?!" and open_ and (last or items[i + 1].kind == "space"):
            count, open_ = count + 1, False
        elif token.kind not in ("space", "mark"):
            open_ = True
    return count + open_


def stem(word: str) -> str:
    """Regular endings off, so that `factor` and `factors`, `double` and `doubled` compare equal."""
    for ending in ("'s", "’s", "ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= (3 if ending == "s" else 4):
            return word[: -len(ending)]
    return word

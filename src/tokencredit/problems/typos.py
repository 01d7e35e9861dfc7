"""One-character misspellings of ordinary English words."""

from __future__ import annotations

import random
import string

from tokencredit.problems import lexicon, phrases
from tokencredit.problems.text import Token, ordinary, stem, tokens

KNOWN = lexicon.PROTECTED | lexicon.COMMON | lexicon.GLUE | lexicon.SHORT_WORDS
KNOWN = KNOWN | {word for phrase in phrases.CLASSES for word in phrase}


def misspell(rng: random.Random, text: str, tries: int = 20) -> str:
    """`text` with one character inserted, deleted, substituted, or swapped with its neighbour in one ordinary
    word; "" where there is no such word. The result is never a word we know, nor another word of the text."""
    items = tokens(text)
    places = [i for i in range(len(items)) if ordinary(items, i)]
    for _ in range(tries if places else 0):
        token = items[rng.choice(places)]
        word = edit(rng, token.text)
        if is_misspelling(items, token.text, word):
            return text[: token.start] + word + text[token.end :]
    return ""


def edit(rng: random.Random, word: str) -> str:
    """One random edit behind the first letter (a misspelt first letter reads as another word too easily)."""
    at = rng.randrange(1, len(word))
    how = rng.choice(("insert", "delete", "substitute", "swap"))
    letter = rng.choice(string.ascii_lowercase)
    if how == "insert":
        return word[:at] + letter + word[at:]
    if how == "delete":
        return word[:at] + word[at + 1 :]
    if how == "substitute":
        return word[:at] + letter + word[at + 1 :]
    at = min(at, len(word) - 2)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def is_misspelling(items: tuple[Token, ...], old: str, new: str) -> bool:
    """Whether `new` is no word we know, none of the text's own, and no inflection of `old`, so that it can't
    change what is said."""
    low = new.lower()
    if low in KNOWN or stem(low) == stem(old.lower()):
        return False
    return all(t.text.lower() != low for t in items if t.kind == "word")


def one_edit(old: str, new: str) -> bool:
    """Whether `new` is `old` after exactly one insertion, deletion, substitution or swap of neighbours.

    >>> one_edit("different", "diferent"), one_edit("form", "from"), one_edit("abc", "abc")
    (True, True, False)
    """
    if old == new or abs(len(old) - len(new)) > 1:
        return False
    i = 0
    while i < min(len(old), len(new)) and old[i] == new[i]:
        i += 1
    if len(old) != len(new):
        short, long = sorted((old, new), key=len)
        return short[i:] == long[i + 1 :]
    return old[i + 1 :] == new[i + 1 :] or (old[i : i + 2] == new[i : i + 2][::-1] and old[i + 2 :] == new[i + 2 :])

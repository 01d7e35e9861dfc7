"""ThinkBench-like variants: one rewrite of the scenario's wording and three kinds of noise, none of which matters.

    scenario    other words by the phrase table, in a light frame (a true rewrite of the scenario needs a language
                model; a file of such rewrites can take the whole set's place)
    characters  up to three ordinary words misspelt by one edit each
    words       up to three articles left out or ordinary words doubled
    appended    one meaningless string at the end

Each has a validator that finds the original in the text again. OUR RECONSTRUCTION.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tokencredit.problems.semifactuals import irrelevant_context, paraphrase, scenario_wrap
from tokencredit.problems.text import Token, ordinary, role, tokens
from tokencredit.problems.typos import is_misspelling, misspell, one_edit
from tokencredit.problems.validator import canonical, validate

TRIES = 40
EDITS = 3
ARTICLES = ("the", "a", "an")


def scenario(rng: random.Random, row: Mapping[str, Any]) -> str:
    """Other words inside a frame; the frame alone where the phrase table knows no other words."""
    original = row["problem"]
    for attempt in range(TRIES):
        reworded = paraphrase(rng, original) or (original if attempt > TRIES // 2 else "")
        text = scenario_wrap(rng, reworded) if reworded else ""
        if text and not check_scenario(original, reworded, text):
            return text
    return ""


def check_scenario(original: str, reworded: str, text: str) -> str:
    """ "" where `reworded` says the same as `original`, and `text` is that in a frame."""
    changed = "" if reworded == original else validate("paraphrase", original, reworded)
    return changed or validate("scenario_wrap", reworded, text)


def characters(rng: random.Random, row: Mapping[str, Any]) -> str:
    """Up to EDITS misspelt words."""
    original = text = row["problem"]
    done = 0
    for _ in range(TRIES):
        new = misspell(rng, text)
        if new and not check_characters(original, new):
            text, done = new, done + 1
        if done == EDITS:
            break
    return text if done else ""


def check_characters(original: str, text: str) -> str:
    """ "" where one to EDITS ordinary words are misspelt by one edit each, and nothing else differs."""
    before, after = tokens(original), tokens(text)
    if len(before) != len(after):
        return "a word was split, joined, added or removed"
    differing = [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if b.text != a.text]
    if not 1 <= len(differing) <= EDITS:
        return f"{len(differing)} words changed, not 1 to {EDITS}"
    for i in differing:
        old, new = before[i].text, after[i].text
        if not ordinary(before, i):
            return f"{role(before, i) or before[i].kind} changed: {old}"
        if not (new.isascii() and new.isalpha() and one_edit(old, new) and is_misspelling(before, old, new)):
            return f"not a misspelt word: {old} -> {new}"
    return ""


def words(rng: random.Random, row: Mapping[str, Any]) -> str:
    """Up to EDITS articles left out or words doubled."""
    original = text = row["problem"]
    done = 0
    for _ in range(TRIES):
        new = _one_word(rng, text)
        if new and not check_words(original, new):
            text, done = new, done + 1
        if done == EDITS:
            break
    return text if done else ""


def _one_word(rng: random.Random, text: str) -> str:
    items = tokens(text)
    between = [i for i in range(1, len(items) - 2) if items[i - 1].kind == "space" and items[i + 1].kind == "space"]
    articles = [i for i in between if items[i].text in ARTICLES and items[i + 2].kind == "word"]
    plain = [i for i in between if ordinary(items, i)]
    leave_out = rng.random() < 0.5
    if not (places := articles if leave_out else plain):
        return ""
    token = items[rng.choice(places)]
    end = token.end + 1 if leave_out else token.end
    return text[: token.start] + ("" if leave_out else f"{token.text} {token.text}") + text[end:]


def check_words(original: str, text: str) -> str:
    """ "" where the words agree once articles are left out and a word that follows itself counts once; no more than
    EDITS words fewer or more."""
    before, after = tokens(original), tokens(text)
    if before == after:
        return "unchanged"
    kept = [[t for t in items if t.kind != "space"] for items in (before, after)]
    if canonical(tuple(_once(kept[0]))) != canonical(tuple(_once(kept[1]))):
        return "a word other than an article is missing or new"
    return "" if abs(len(kept[0]) - len(kept[1])) <= EDITS else f"more than {EDITS} words changed"


def _once(items: list[Token]) -> list[Token]:
    """Ordinary words that follow themselves, once."""
    doubled = {i + 1 for i, (a, b) in enumerate(pairwise(items)) if a.kind == b.kind == "word" and a.text == b.text}
    return [t for i, t in enumerate(items) if i not in doubled]


def appended(rng: random.Random, row: Mapping[str, Any]) -> str:
    """A tautology, random string or tag at the end."""
    for _ in range(TRIES):
        text = irrelevant_context(rng, row["problem"])
        if not validate("irrelevant_context", row["problem"], text):
            return text
    return ""

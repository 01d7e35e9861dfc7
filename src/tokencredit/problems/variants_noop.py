"""NoOp variants: one sentence that looks as if it belonged, holds a fresh number, and changes nothing.

    NoOp     ... <sentences>. Meanwhile, a gardener has stored 37 dusty lanterns behind the barn. Find the ...
    control  ... <sentences>. Meanwhile, a gardener has stored some dusty lanterns behind the barn. Find the ...

Many published clauses are not truly irrelevant, so the validator refuses every sentence that shares a content word or
number with the problem, names anybody, holds mathematics, a unit, a keyword, a hint or a condition, or stands where
a pronoun of the next sentence could point at it; the control has as many words and no number, so that the paired drop
of a variant below its control is the number's doing. OUR RECONSTRUCTION.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from tokencredit.problems import lexicon
from tokencredit.problems.text import Token, role, sentence_count, stem, tokens


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TRIES = 60
WORDS = 18  # most words of a clause
OPENERS = ("Meanwhile, ", "On the same evening, ", "Not far away, ", "Earlier that morning, ")
SCENES = (
    "a gardener has stored {n} {what} behind the barn.",
    "a drawer in the museum office holds {n} {what}.",
    "a shelf near the entrance carries {n} {what}.",
    "the baker's cousin unpacked {n} {what} in the attic.",
    "someone left {n} {what} on the windowsill.",
    "a courier dropped off {n} {what} at the lighthouse.",
)
LOOKS = ("dusty", "folded", "faded", "polished", "borrowed", "wrinkled", "knitted")
THINGS = (
    "lanterns", "postcards", "umbrellas", "teapots", "blankets", "cushions", "trumpets", "mittens", "baskets",
    "scarves", "saucers", "napkins", "whistles", "thimbles",
)  # fmt: skip
FILLER = "some"  # in the number's place in the control
PRONOUNS = _words("it its they them their theirs he him his she her hers this these those such latter former")
ASKS = _words("find determine compute calculate evaluate what how which express output enter")
_ABBREVIATED = _words("st mr mrs ms dr vs etc eg ie no fig al jr sr prof")


def noop(rng: random.Random, row: Mapping[str, Any]) -> str:
    """The problem with a clause that has a number; "" where no valid one was found."""
    return _pair(rng, row)[0]


def control(rng: random.Random, row: Mapping[str, Any]) -> str:
    """The problem with the same clause (same generator) without its number."""
    return _pair(rng, row)[1]


def _pair(rng: random.Random, row: Mapping[str, Any]) -> tuple[str, str]:
    text = row["problem"]
    places = slots(text)
    for _ in range(TRIES if places else 0):
        at = places[-1]
        number = rng.choice([n for n in range(21, 99) if n % 10])
        what = f"{rng.choice(LOOKS)} {rng.choice(THINGS)}"
        clause = (rng.choice(OPENERS) if at else "") + rng.choice(SCENES)
        clause = clause[0].upper() + clause[1:]
        pair = [f"{text[:at]}{clause.format(n=n, what=what)} {text[at:]}" for n in (number, FILLER)]
        if not any(check(text, new, row["answer"], numbers) for new, numbers in zip(pair, (1, 0), strict=True)):
            return pair[0], pair[1]
    return "", ""


# ---- the validator ---------------------------------------------------------------------------------


def check(original: str, text: str, answer: str = "", numbers: int = 1) -> str:
    """ "" where `text` is `original` with one sound clause before its question, else the reason for refusal.

    numbers: how many the clause has to hold, 1 for a NoOp clause and 0 for its control.
    """
    extra = len(text) - len(original)
    for at in slots(original):
        if extra > 0 and text[:at] == original[:at] and text[at + extra :] == original[at:]:
            return check_clause(text[at : at + extra], original, answer, numbers)
    return "the problem is not intact around one sentence before its question"


def check_clause(clause: str, original: str, answer: str, numbers: int) -> str:
    """Reason why `clause` is not one sentence that cannot matter, or "" ."""
    items = tokens(clause.strip())
    if not clause[-1:].isspace() or not clause.strip().endswith(".") or "?" in clause or sentence_count(items) != 1:
        return "not one sentence of its own"
    for i, token in enumerate(items):
        part, low = role(items, i), token.text.lower()
        if part not in ("", "word", "number") and low not in lexicon.FRAME_WORDS | {"some", "same", "not"}:
            return f"clause holds a {part}: {token.text}"
        if low in lexicon.HINTS or any(low.startswith(b) for b in lexicon.BANNED_STEMS):
            return f"clause holds a hint or condition: {low}"
    found = [t.text for t in items if t.kind == "number"]
    if len(found) != numbers:
        return f"clause holds {len(found)} numbers, not {numbers}"
    if sum(t.kind == "word" for t in items) > WORDS:
        return f"clause of more than {WORDS} words"
    for number in found:
        if number in {*re.findall(r"\d+", original), *re.findall(r"\d+", answer)}:
            return f"clause repeats a number: {number}"
    shared = sorted(w for w in _stems(items) if w in original.lower())
    return f"clause shares words with the problem: {', '.join(shared)}" if shared else ""


def _stems(items: tuple[Token, ...]) -> set[str]:
    """Stems of the words that carry content."""
    said = {t.text.lower() for t in items if t.kind == "word" and len(t.text) >= 4}
    return {stem(w) for w in said - lexicon.COMMON - lexicon.GLUE - {FILLER, "same", "that", "left"}}


# ---- where a clause may stand ----------------------------------------------------------------------


def slots(text: str) -> list[int]:
    """Offsets at which a sentence may be put in: the start, and every start of a sentence up to the final question
    whose own words point at nothing before them."""
    starts = sentence_starts(text)
    parts = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
    asking = [i for i, part in enumerate(parts) if "?" in part or ASKS & _said(part)]
    last = asking[-1] if asking else len(parts) - 1
    return [a for i, (a, part) in enumerate(zip(starts, parts, strict=True)) if i <= last and _free(i, part)]


def _free(i: int, part: str) -> bool:
    return i == 0 or not PRONOUNS & _said(part)


def _said(part: str) -> set[str]:
    return {t.text.lower() for t in tokens(part) if t.kind == "word"}


def sentence_starts(text: str) -> list[int]:
    """Offsets where a sentence starts behind one that is closed; the first is that of the text."""
    items = [t for t in tokens(text) if t.kind != "space"]
    starts = [items[0].start] if items else []
    for i in range(1, len(items)):
        gap = items[i].start > items[i - 1].end
        if gap and _closed(items[:i]) and items[i].text[:1] not in ")]}.,;" and not items[i].text[:1].islower():
            starts.append(items[i].start)
    return starts


def _closed(items: list[Token]) -> bool:
    last = items[-1]
    if last.kind == "math":
        return last.text.rstrip("$)]\\ \n}").endswith((".", "?", "!")) and not last.text.startswith("[asy]")
    if last.text in "\"”’')" and len(items) > 1:
        return _closed(items[:-1]) if items[-2].kind == "mark" else False
    if last.text not in (".", "?", "!"):
        return False
    before = items[-2] if len(items) > 1 else last
    short = before.kind == "word" and (len(before.text) == 1 or before.text.lower() in _ABBREVIATED)
    return before.text != "." and not (last.text == "." and short)

r"""Two verdicts on (gold, box): ours, and the library's own (math-verify 0.9.0 with its defaults).

Ours compares the trees of structure.py, the gold first: what the gold is (a number, a list, a set, an assignment)
decides how the answer is read. Equality is exact unless a tolerance is given. The rules, each with the library's
fault it mends:

* numbers: exact (1/2^99 is not 1/2^98; 0.0833333333333333 is not 1/12)
* percent: 5% is 1/20, unless the gold itself is in percent: then 5 and 5% both answer it
* a base suffix must be the gold's (52 is not 52_8); `_{10}` may be left out
* `100,200` as a gold is a list; one with a shorter first group (58,500) is read either way; an answer follows the gold
* lists and sets in any order, with multiplicity; tuples in order; an interval is not a set of two
* `y = 5` answers 5, and 5 answers `y = 5`; x = 1 does not answer y = 1; x = 2 answers neither 2x nor x = 2k
* relations, intervals and unions that name the same set are equal in both directions
* equations are equal up to a constant factor, or if they solve to the same

Runs inside worker processes; imports sympy and math_verify.
"""

from __future__ import annotations

import re
from functools import lru_cache

from math_verify import parse, verify

from tokencredit.grading.choice import choice_letter
from tokencredit.grading.equality import equal, names
from tokencredit.grading.exact import TooLarge
from tokencredit.grading.latex import Unreadable, clean, has_or
from tokencredit.grading.structure import Units, Word, read

_BASE = re.compile(r"\(?\s*(?:\\text\s*\{)?([0-9A-Fa-f]+)\}?\s*\)?\s*_\s*\{?\s*(?:\\text\s*\{)?(-?\w+)\s*\}?\s*\}?")
_NAME_IS = re.compile(r"^[A-Za-z]+(?:_\{?\w+\}?)?\s*=\s*")
_BASE_NAMES = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}
_COMMA_NUMBER = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_THREES = re.compile(r"[+-]?\d{3}(?:,\d{3})+")
_OPTION = re.compile(r"\\text\s*\{\s*\(?[A-J]\)?\s*\}|\([A-J]\)|[A-J]")
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])(?<!\\text\{)[A-Za-z]{3,}")
_CASED = re.compile(r"\\(?:text|mathbb|mathcal)\s*\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]")


def library(gold: str, box: str) -> bool:
    """math-verify's verdict with its defaults, both sides in a box; its alarms are off, as our timer stands outside."""
    return bool(verify(_library_parse(gold), _library_parse(box), timeout_seconds=None))


@lru_cache(maxsize=4096)
def _library_parse(text: str) -> list:
    """What the library reads in a box that holds `text`; remembered, since the samples of a problem share its gold."""
    return parse(f"\\boxed{{{text}}}", parsing_timeout=None)


def judge(gold: str, box: str, tolerance: float | None = None) -> tuple[bool, str]:
    """(our verdict, status): ok, unparsable (the box cannot be read), refused (a magnitude out of bounds) or crash."""
    try:
        golds = re.split(r"\s+OR\s+", gold)  # alternatives, as some golds give them
        return any(_judge(g, box, tolerance) for g in golds), "ok"
    except Unreadable:
        return False, "unparsable"
    except (TooLarge, RecursionError):
        return False, "refused"
    except MemoryError:
        raise
    except Exception:  # sympy gives way in many places; a failure is one wrong answer, and counted
        return False, "crash"


def why_unreadable(gold: str) -> str:
    """ "" if the gold can be read, else why not."""
    try:
        text = clean(gold)
        if _BASE.fullmatch(text):
            return ""
        tree = read(text)
    except (Unreadable, TooLarge, RecursionError) as error:
        return str(error) or type(error).__name__
    if len(_LONG_WORD.findall(text)) > 2 or (isinstance(tree, Word) and len(tree.text) > 40):
        return "a sentence, not an answer"
    return ""


def _judge(gold: str, box: str, tolerance: float | None) -> bool:
    gold_text, box_text = clean(gold), clean(box)
    if gold_text == box_text:
        return True
    if _OPTION.fullmatch(gold_text) and choice_letter(box) == choice_letter(gold):
        return True
    based = _same_base(gold_text, box_text)
    if based is not None:
        return based
    if "%" in gold_text:  # the gold says percent: compare what stands before the sign
        gold_text, box_text = (re.sub(r"\s*\\?%", "", t) for t in (gold_text, box_text))
    gold_text, box_text = _one_case(gold_text, box_text)
    unreadable: Unreadable | None = None
    for gold_reading, box_reading in _readings(gold_text, box_text):
        try:
            tree = read(gold_reading)
            answer = read(box_reading, Units(letters=not names(tree)))
        except Unreadable as error:
            unreadable = error
            continue
        if equal(tree, answer, tolerance, has_or(gold), has_or(box)):
            return True
        unreadable = None
    if unreadable is not None:
        raise unreadable
    return False


def _same_base(gold: str, box: str) -> bool | None:
    """Verdict where a numeral carries its base; None where neither does."""
    numerals = []
    for text in (gold, box):
        text = _NAME_IS.sub("", text)
        match = _BASE.fullmatch(text)
        letters_only = match and match.group(1).isalpha()
        if match and not letters_only:
            base = match.group(2).lower()
            numerals.append((match.group(1).lower().lstrip("0") or "0", _BASE_NAMES.get(base, base)))
        else:
            numerals.append((text.replace(" ", "").lower(), ""))
    if not any(base for _, base in numerals):
        return None
    (gold_digits, gold_base), (box_digits, box_base) = numerals
    if {gold_base, box_base} <= {"", "10"}:
        return gold_digits == box_digits
    return numerals[0] == numerals[1]


def _one_case(gold: str, box: str) -> tuple[str, str]:
    """Lower-case letters in both, unless one uses a letter in both cases (R^2 - r^2). E and I are never e and i."""
    for text in (gold, box):
        letters = {m.group() for m in _CASED.finditer(text) if len(m.group()) == 1}
        if any(c.isupper() and c.lower() in letters for c in letters - {"E", "I"}):
            return gold, box

    def lower(match: re.Match[str]) -> str:
        letter = match.group()
        return letter if len(letter) > 1 or letter in "EI" else letter.lower()

    return _CASED.sub(lower, gold), _CASED.sub(lower, box)


def _readings(gold: str, box: str) -> list[tuple[str, str]]:
    """What a comma between digits may mean: (gold text, box text) to try in turn."""
    gold_number, box_number = _COMMA_NUMBER.fullmatch(gold), _COMMA_NUMBER.fullmatch(box)
    readings = [(gold, box)]
    if box_number and not gold_number:
        readings.append((gold, box.replace(",", "")))
    elif gold_number and not _THREES.fullmatch(gold):
        readings.append((gold.replace(",", ""), box.replace(",", "") if box_number else box))
    return readings

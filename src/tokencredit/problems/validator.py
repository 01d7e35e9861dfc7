"""Checks that a perturbed text still asks the same: every machine-checkable rule for SCAPO's semifactuals.

Rules: arXiv 2609.40360, section 2 of its perturbation set-up. Both texts are cut into tokens (text.py), and

| kind | accepted when |
|---|---|
| paraphrase | the tokens agree one by one, and the sentences in number, once synonyms of the phrase table |
| | count as equal, and glue words (a, the, is, ...) and punctuation are dropped |
| typo_noise | exactly one token differs: an ordinary word, by one insertion, deletion, substitution or swap, |
| | and not into another known word |
| scenario_wrap | the original stands intact (its first letter may lose its capital) around one inserted phrase |
| | of at most 14 words without number, formula, name, condition, hint, or content word of the original |
| irrelevant_context | the original stands unchanged before one tautology, random string (6 to 12 letters and |
| | digits), or bracketed tag |
| counterfactual | exactly one number differs; a synthetic story must stay sound, and its answer must differ |

What no program can check (whether a sentence is a fact about the scene, or whether two words mean the same) is
settled by refusing: the validator has false refusals by design, and a paraphrase in words it does not know is
one of them. `novelty` is the share of ordinary words that a paraphrase may change beyond the phrase table, for
imported texts; mathematics, numbers, logic, units, names, keywords, and the whole question stay frozen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from tokencredit.problems import lexicon, phrases, synthetic
from tokencredit.problems.text import Token, ordinary, role, sentence_count, starts_sentence, stem, tokens
from tokencredit.problems.typos import is_misspelling, one_edit
from tokencredit.study.errors import UserError

SEMIFACTUAL = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
COUNTERFACTUAL = "counterfactual"
FRAME_WORDS = 14  # a frame is light: at most so many words


def validate(kind: str, original: str, text: str, novelty: float = 0.0) -> str:
    """ "" where `text` is a sound perturbation of `original`, else the reason for refusal.

    Raises UserError for an unknown kind.
    """
    if kind not in CHECKS:
        raise UserError(f"unknown perturbation '{kind}'; choose from {', '.join(CHECKS)}")
    if not text.strip():
        return "empty"
    if text.strip() == original.strip():
        return "unchanged"
    if kind == "paraphrase":
        return _paraphrase(original, text, novelty)
    return CHECKS[kind](original, text)


# ---- paraphrase ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """A unit of comparison: its role (text.role; "phrase" for a synonym with a protected word), and canonical text."""

    role: str
    text: str


def canonical(items: Sequence[Token]) -> list[Item]:
    """Tokens without white space, marks and glue; synonyms of the phrase table as one item of their class."""
    kept = [i for i, t in enumerate(items) if t.kind not in ("space", "mark")]
    gap_before = {j for i, j in pairwise(kept) if any(items[m].kind == "mark" for m in range(i, j))}
    out: list[Item] = []
    at = 0
    while at < len(kept):
        length, name = _phrase(items, kept, at, gap_before)
        if length:
            out.append(Item("phrase" if name in phrases.FROZEN_CLASSES else "word", name))
            at += length
            continue
        i = kept[at]
        part, word = role(items, i), items[i].text
        at += 1
        if items[i].kind == "word" and word.lower() in lexicon.GLUE and part != "variable":
            continue
        out.append(Item(part, stem(word.lower()) if part == "word" else _protected(part, word)))
    return out


def _phrase(items: Sequence[Token], kept: list[int], at: int, gap_before: set[int]) -> tuple[int, str]:
    """Length in tokens and class of the longest phrase of the table that starts here; (0, "") for none."""
    words: list[str] = []
    for i in kept[at : at + phrases.LONGEST_PHRASE]:
        if items[i].kind != "word" or (words and i in gap_before):
            break
        if items[i].text[0].isupper() and not starts_sentence(items, i):
            break
        words.append(items[i].text.lower())
    for length in range(len(words), 0, -1):
        name = phrases.CLASSES.get(tuple(words[:length]))
        if name is not None:
            return length, name
    return 0, ""


def _protected(part: str, word: str) -> str:
    return word.lower() if part in ("number word", "logic", "unit", "keyword") else word


def _paraphrase(original: str, text: str, novelty: float) -> str:
    before, after = tokens(original), tokens(text)
    old, new = canonical(before), canonical(after)
    if old != new:
        if frozen := _compare(*([i for i in items if i.role != "word"] for items in (old, new))):
            return frozen
        if novelty == 0:
            return _compare(old, new)
    if sentence_count(before) != sentence_count(after):
        return "a sentence was added or removed"
    return _novel(before, after, novelty) if old != new else ""


def _compare(old: Sequence[Item], new: Sequence[Item]) -> str:
    """Reason that names the first difference, or ""."""
    for op, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if op == "equal":
            continue
        part = (old[i1] if i1 < i2 else new[j1]).role
        was, now = (" ".join(i.text for i in items) or "nothing" for items in (old[i1:i2], new[j1:j2]))
        return f"{part} changed: {was[:60]} -> {now[:60]}"
    return ""


def _novel(before: Sequence[Token], after: Sequence[Token], novelty: float) -> str:
    """The check of imported paraphrases: protected items and the question frozen, few ordinary words new."""
    old, new = canonical(before), canonical(after)
    if reason := _compare(canonical(_question(before)), canonical(_question(after))):
        return f"question: {reason}"
    words = [[i for i in items if i.role == "word"] for items in (old, new)]
    same = sum(b.size for b in SequenceMatcher(None, words[0], words[1], autojunk=False).get_matching_blocks())
    share = 1 - same / max(len(words[0]), len(words[1]), 1)
    return f"{share:.0%} of the ordinary words changed (at most {novelty:.0%})" if share > novelty else ""


def _question(items: Sequence[Token]) -> Sequence[Token]:
    """The tokens of the last sentence."""
    last = max((i for i, t in enumerate(items) if t.kind not in ("space", "mark")), default=0)
    starts = [i for i in range(last + 1) if items[i].kind not in ("space", "mark") and starts_sentence(items, i)]
    return items[starts[-1] if starts else 0 :]


# ---- typo ------------------------------------------------------------------------------------------


def _typo_noise(original: str, text: str) -> str:
    before, after = tokens(original), tokens(text)
    if len(before) != len(after):
        return "more than one word changed, or a word was split, joined, added or removed"
    differing = [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if b.text != a.text]
    if len(differing) != 1:
        return f"{len(differing)} words changed, not one"
    i = differing[0]
    old, new = before[i].text, after[i].text
    if not ordinary(before, i):
        return f"{role(before, i) or before[i].kind} changed: {old[:60]} -> {new[:60]}"
    if not (new.isascii() and new.isalpha() and new[1:].islower() and new[0].isupper() == old[0].isupper()):
        return f"not a misspelt word: {new[:60]}"
    if not one_edit(old, new):
        return f"not exactly one character edit: {old} -> {new}"
    return "" if is_misspelling(before, old, new) else f"another word of its own: {old} -> {new}"


# ---- scenario wrap ---------------------------------------------------------------------------------


def _scenario_wrap(original: str, text: str) -> str:
    base, whole = original.strip(), text.strip()
    for at, phrase in _insertions(base, whole):
        if at == 0 and whole[-len(base)] != base[0] and not decapitalisable(base):
            return f"name changed: {base.split()[0]} lost its capital"
        return check_frame(phrase, original, closed=at == len(base))
    return "the original text is not intact around one inserted phrase"


def _insertions(base: str, whole: str) -> list[tuple[int, str]]:
    """(offset in `base`, inserted phrase) for the one place where `whole` is `base` plus a phrase; [] for none.
    The place is the start, the end, or behind a comma or the end of a sentence."""
    extra = len(whole) - len(base)
    if extra <= 0:
        return []
    if whole[extra:] in (base, lower_first(base)):
        return [(0, whole[:extra])]
    if whole.startswith(base):
        return [(len(base), whole[len(base) :])]
    for token, following in pairwise(tokens(base)):
        at = following.end if following.kind == "space" else 0
        fits = token.kind == "mark" and token.text in ",.?!:" and at
        if fits and whole[:at] == base[:at] and whole[at + extra :] == base[at:]:
            return [(at, whole[at : at + extra])]
    return []


def lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def decapitalisable(text: str) -> bool:
    """Whether the first word may lose its capital behind a prefix: an ordinary opening word, not a name or label."""
    first = tokens(text)[0]
    capital_only = first.text == "A" or first.text[1:].islower()
    return first.kind == "word" and capital_only and first.text.lower() in lexicon.STARTERS


def check_frame(phrase: str, original: str, closed: bool) -> str:
    """Reason why `phrase` is not a light, empty frame around `original`, or "". `closed`: it follows the text."""
    items = tokens(phrase.strip())
    for i, token in enumerate(items):
        if reason := _frame_token(items, i, token):
            return reason
    words = sum(t.kind == "word" for t in items)
    if not 2 <= words <= FRAME_WORDS:
        return f"frame of {words} words (2 to {FRAME_WORDS})"
    if "?" in phrase:
        return "frame asks something"
    if not re.search(r"[.!)]$" if closed else r"[,.!)]$", phrase.strip()) or (not closed and not phrase[-1].isspace()):
        return "frame is not set off by a comma or a full stop"
    own = _content(tokens(original))
    shared = sorted(_content(items) & own)
    return f"frame shares words with the problem: {', '.join(shared)}" if shared else ""


def _frame_token(items: Sequence[Token], i: int, token: Token) -> str:
    part, low = role(items, i), token.text.lower()
    inner_hyphen = token.text == "-" and 0 < i < len(items) - 1 and {items[i - 1].kind, items[i + 1].kind} == {"word"}
    if part in ("", "word") or inner_hyphen or token.text in "()" or low in lexicon.FRAME_WORDS:
        return f"frame holds a hint or condition: {low}" if low in lexicon.HINTS else ""
    return f"frame holds a {part}: {token.text[:60]}"


def _content(items: Sequence[Token]) -> set[str]:
    """Stems of the words that carry content: at least four letters, not mere openers."""
    words = {t.text.lower() for t in items if t.kind == "word" and len(t.text) >= 4}
    return {stem(w) for w in words - lexicon.COMMON - lexicon.GLUE}


# ---- irrelevant context ----------------------------------------------------------------------------

_LETTER_AND_DIGIT = r"(?=[a-z0-9]*[a-z])(?=[a-z0-9]*\d)"
_BRACKETED = re.compile(rf"\[(?:([a-z]{{2,8}}): (?:#([a-z]{{3,12}})|{_LETTER_AND_DIGIT}[a-z0-9]{{4,12}}))\]")
_BARE_TAG = re.compile(rf"\[{_LETTER_AND_DIGIT}[a-z0-9]{{4,12}}\]")
_RANDOM = re.compile(r"(?=(?:.*[A-Za-z]){2})(?=(?:.*\d){2})(?!\d+[A-Za-z]+$)(?!\d+e\d+$)[A-Za-z0-9]{6,12}")
_TAUTOLOGY = re.compile(r"(?:(?:and|indeed|still|as ever),? )?(?:what is )?([a-z]+) is \1\.?", re.IGNORECASE)


def _irrelevant_context(original: str, text: str) -> str:
    for base in (original, original.rstrip()):
        if text.startswith(base) and text[len(base) :][:1].isspace():
            return check_distractor(text[len(base) :].strip(), original)
    return "the original text is not unchanged in front of the distractor"


def check_distractor(distractor: str, original: str) -> str:
    """Reason why `distractor` is none of the three shapes, or "" ."""
    low = distractor.lower()
    for banned in lexicon.BANNED_STEMS:
        if banned in low:
            return f"distractor holds the word '{banned}'"
    found = _BRACKETED.fullmatch(distractor) or _BARE_TAG.fullmatch(distractor) or _TAUTOLOGY.fullmatch(distractor)
    if found is None and not _RANDOM.fullmatch(distractor):
        return "distractor is no tautology, random string of 6 to 12 letters and digits, or bracketed tag"
    for word in found.groups() if found else ():
        if word and _means_something(word.lower()):
            return f"distractor holds a word of mathematics: {word}"
    if low in original.lower():
        return "distractor occurs in the text"
    if found and found.re is _TAUTOLOGY and re.search(rf"\b{found[1]}\b", original, re.IGNORECASE):
        return f"distractor speaks of the text: {found[1]}"
    return ""


def _means_something(word: str) -> bool:
    return len(word) == 1 or any(
        word in group
        for group in (lexicon.NUMBER_WORDS, lexicon.KEYWORDS, lexicon.UNITS - lexicon.FRAME_WORDS, lexicon.HINTS)
    )


# ---- counterfactual --------------------------------------------------------------------------------


def _counterfactual(original: str, text: str) -> str:
    before, after = (re.findall(r"\d+|\D+", t) for t in (original, text))
    differing = [(b, a) for b, a in zip(before, after, strict=False) if b != a]
    if len(before) != len(after) or len(differing) != 1:
        return "not exactly one number changed"
    old, new = differing[0]
    if not (old.isdigit() and new.isdigit()) or int(old) == int(new):
        return "not exactly one number changed"
    story = synthetic.parse(original)
    if story is None:
        return ""
    changed = synthetic.parse(text)
    if changed is None or not changed.sound:
        return f"a value leaves 1..{synthetic.HIGHEST}"
    return "the answer stays the same" if changed.answer == story.answer else ""


CHECKS: dict[str, Callable[[str, str], str]] = {
    "paraphrase": lambda original, text: _paraphrase(original, text, 0.0),
    "typo_noise": _typo_noise,
    "scenario_wrap": _scenario_wrap,
    "irrelevant_context": _irrelevant_context,
    COUNTERFACTUAL: _counterfactual,
}

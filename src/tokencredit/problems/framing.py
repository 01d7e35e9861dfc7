"""Frames around a problem, and distractors behind it: what the validator lets stand there.

| kind | accepted when |
|---|---|
| scenario_wrap | the original stands intact (its first letter may lose its capital) around one inserted phrase of at |
| | most 14 words that opens as a time, place or occasion, speaks of known scenes only (vocabulary.SCENE), and has no |
| | number, formula, name, condition, hint, pronoun, or content word of the original |
| irrelevant_context | the original stands unchanged before one tautology, one random string (6 to 12 letters and |
| | digits that spell nothing), or one bracketed tag |

`novelty` is the share of a frame's content words that may be unknown, for texts from outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tokencredit.problems import lexicon, vocabulary
from tokencredit.problems.text import Token, role, stem, tokens

FRAME_WORDS = 14  # a frame is light: at most so many words


# ---- scenario wrap ---------------------------------------------------------------------------------


def scenario_wrap(original: str, text: str, novelty: float) -> str:
    """ "" for the original in a sound frame, else the reason for refusal."""
    base, whole = original.strip(), text.strip()
    reason = ""
    for at, phrase in _insertions(base, whole):
        if at == 0 and whole[-len(base)] != base[0] and not decapitalisable(base):
            return f"name changed: {base.split()[0]} lost its capital"
        found = check_frame(phrase, original, novelty, first=at == 0, last=at == len(base))
        if not found:
            return ""
        reason = reason or found
    return reason or "the original text is not intact around one inserted phrase"


def _insertions(base: str, whole: str) -> Iterator[tuple[int, str]]:
    """(offset in `base`, inserted phrase) for every place where `whole` is `base` plus a phrase: the start, the end,
    or behind a comma or the end of a sentence."""
    extra = len(whole) - len(base)
    if extra <= 0:
        return
    if whole[extra:] in (base, lower_first(base)):
        yield 0, whole[:extra]
    if whole.startswith(base):
        yield len(base), whole[len(base) :]
    for token, following in pairwise(tokens(base)):
        at = following.end if following.kind == "space" else 0
        fits = token.kind == "mark" and token.text in ",.?!:" and at
        if fits and whole[:at] == base[:at] and whole[at + extra :] == base[at:]:
            yield at, whole[at : at + extra]


def lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def decapitalisable(text: str) -> bool:
    """Whether the first word may lose its capital behind a prefix: an ordinary opening word, not a name or label."""
    first = tokens(text)[0]
    capital_only = first.text == "A" or first.text[1:].islower()
    return first.kind == "word" and capital_only and first.text.lower() in lexicon.STARTERS


def check_frame(phrase: str, original: str, novelty: float, first: bool, last: bool) -> str:
    """Reason why `phrase` is not a light, empty frame before (`first`), in or behind (`last`) `original`, or ""."""
    bare = phrase.strip()
    items = tokens(bare)
    for i, token in enumerate(items):
        if reason := _frame_token(items, i, token):
            return reason
    if reason := _shape(phrase, items, first, last):
        return reason
    words = [t.text.lower() for t in items if t.kind == "word"]
    own = {stem(w) for w in _words(original)} - vocabulary.PLAIN_STEMS
    if shared := sorted({w for w in words if stem(w) in own and w not in vocabulary.PLAIN}):
        return f"frame shares words with the problem: {', '.join(shared)}"
    content = [w for w in words if w not in vocabulary.PLAIN]
    unknown = [w for w in content if w not in vocabulary.SCENE]
    if len(unknown) > novelty * len(content):
        return f"frame speaks of something we do not know to be idle: {', '.join(unknown)}"
    return ""


def _frame_token(items: Sequence[Token], i: int, token: Token) -> str:
    part, low = role(items, i), token.text.lower()
    inner_hyphen = token.text == "-" and 0 < i < len(items) - 1 and {items[i - 1].kind, items[i + 1].kind} == {"word"}
    for group, name in ((vocabulary.CONDITIONS, "hint or condition"), (vocabulary.POINTING, "pronoun")):
        if low in group:
            return f"frame holds a {name}: {low}"
    known = part == "name" and token.text[1:].islower() and low in vocabulary.PROPER
    if part in ("", "word") or inner_hyphen or token.text in "()" or low in lexicon.FRAME_WORDS or known:
        return f"frame holds a hint or condition: {low}" if low in lexicon.HINTS else ""
    return f"frame holds a {part}: {token.text[:60]}"


def _shape(phrase: str, items: Sequence[Token], first: bool, last: bool) -> str:
    """Reason against the frame's length, opening, closing or marks, or ""."""
    bare = phrase.strip()
    words = [t.text.lower() for t in items if t.kind == "word"]
    if not 2 <= len(words) <= FRAME_WORDS:
        return f"frame of {len(words)} words (2 to {FRAME_WORDS})"
    if "?" in bare or any(t.kind == "mark" and t.text not in ",.!'’" for t in items):
        return "frame asks something, or holds a mark that no frame needs"
    if not re.search(r"[.!)]$" if last else r"[,.!)]$", bare) or (not last and not phrase[-1].isspace()):
        return "frame is not set off by a comma or a full stop"
    if bare.count("(") != bare.count(")") or ("(" in bare and not re.fullmatch(r"\([^()]*\)", bare)):
        return "frame has brackets inside, or open ones"
    if last and not phrase[0].isspace():
        return "frame is not set off by white space"
    alone = bare.endswith((".", "!", ")"))
    if re.search(r"[.!]\s", bare) or words[0] not in (vocabulary.SENTENCE_OPENERS if alone else vocabulary.OPENERS):
        return f"frame does not open as a time, place or occasion: {words[0]}"
    return "frame does not open as a sentence" if alone and not bare.lstrip("(")[:1].isupper() else ""


def _words(text: str) -> set[str]:
    """Words of at least three letters, those inside mathematics left out."""
    return {t.text.lower() for t in tokens(text) if t.kind == "word" and len(t.text) >= 3}


# ---- irrelevant context ----------------------------------------------------------------------------

_MIXED = r"(?=[a-z0-9]*[a-z])(?=[a-z0-9]*\d)[a-z0-9]{4,12}"
_TAG = re.compile(
    rf"\[(?:(?P<label>[a-z]{{2,8}}): (?:#(?P<tag>[a-z]{{3,12}})|(?P<mixed>{_MIXED}))|(?P<bare>{_MIXED}))\]"
)
_RANDOM = re.compile(r"(?=(?:.*[A-Za-z]){2})(?=(?:.*\d){2})(?!\d+[A-Za-z]+$)(?!\d+e\d+$)[A-Za-z0-9]{6,12}")
_TAUTOLOGY = re.compile(r"(?:(?:and|indeed|still|as ever),? )?(?:what is )?([a-z]+) is \1\.?", re.IGNORECASE)


def irrelevant_context(original: str, text: str) -> str:
    """ "" for the original unchanged before one distractor, else the reason for refusal."""
    for base in (original, original.rstrip()):
        if text.startswith(base) and text[len(base) :][:1].isspace():
            return check_distractor(text[len(base) :].strip(), original)
    return "the original text is not unchanged in front of the distractor"


def check_distractor(distractor: str, original: str) -> str:
    """Reason why `distractor` is none of the three shapes, or ""."""
    low = distractor.lower()
    for banned in lexicon.BANNED_STEMS:
        if banned in low:
            return f"distractor holds the word '{banned}'"
    if low in original.lower():
        return "distractor occurs in the text"
    if same := _TAUTOLOGY.fullmatch(distractor):
        word = same[1].lower()
        if re.search(rf"\b{word}\b", original, re.IGNORECASE):
            return f"distractor speaks of the text: {word}"
        return _meaning(word)
    if tag := _TAG.fullmatch(distractor):
        words = (tag["label"] or "", tag["tag"] or "")
        return next(filter(None, map(_meaning, filter(None, words))), "") or _spelled(tag["mixed"] or tag["bare"] or "")
    if _RANDOM.fullmatch(distractor):
        return _spelled(low)
    return "distractor is no tautology, random string of 6 to 12 letters and digits, or bracketed tag"


def _meaning(word: str) -> str:
    groups = (lexicon.NUMBER_WORDS, lexicon.KEYWORDS, lexicon.UNITS - lexicon.FRAME_WORDS, lexicon.HINTS)
    means = len(word) == 1 or word in vocabulary.LABELS or any(word in group for group in groups)
    return f"distractor holds a word of mathematics: {word}" if means else ""


def _spelled(mixed: str) -> str:
    """A random string must not read as something: "mod1000", "times100", "12km34"."""
    for run in re.findall(r"[a-z]+", mixed):
        if len(run) >= 2 and run in vocabulary.SPELLED:
            return f"distractor spells a word: {run}"
    return ""

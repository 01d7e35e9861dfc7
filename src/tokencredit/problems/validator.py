"""Checks that a perturbed text still asks the same: every machine-checkable rule for SCAPO's semifactuals.

Rules: arXiv 2609.40360, section 2 of its perturbation set-up. Both texts are cut into tokens (text.py), and

| kind | accepted when |
|---|---|
| paraphrase | the tokens agree one by one, and so do the ends of sentences, once synonyms of the phrase table count |
| | as equal, and glue words (a, the, is, ...) and punctuation that touches no mathematics are dropped |
| typo_noise | exactly one token differs: an ordinary word, by one insertion, deletion, substitution or swap, |
| | and not into another known word |
| scenario_wrap, | see framing.py: the original intact in an idle frame, or before one meaningless distractor |
| irrelevant_context | |
| counterfactual | exactly one number differs; a synthetic story must stay sound, and its answer must differ |

No text may hold the gold answer where the original does not. What no program can check (whether a sentence is a fact
about the scene, or whether two words mean the same) is settled by refusing: the validator has false refusals by
design. `novelty`, for texts from outside, is the share of ordinary words that a paraphrase may replace beyond the
phrase table, word for word; mathematics, numbers, logic, units, names, keywords, directions, what is named twice, and
the whole question stay frozen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from tokencredit.problems import framing, lexicon, phrases, synthetic, vocabulary
from tokencredit.problems.framing import decapitalisable, lower_first
from tokencredit.problems.text import Token, ordinary, role, starts_sentence, stem, tokens
from tokencredit.problems.typos import KNOWN, is_misspelling, one_edit
from tokencredit.study.errors import UserError

__all__ = ["CHECKS", "COUNTERFACTUAL", "SEMIFACTUAL", "canonical", "decapitalisable", "lower_first", "validate"]

SEMIFACTUAL = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
COUNTERFACTUAL = "counterfactual"


def validate(kind: str, original: str, text: str, novelty: float = 0.0, answer: str = "") -> str:
    """ "" where `text` is a sound perturbation of `original`, else the reason for refusal.

    `answer`, where given, is the gold answer that the text must not give away. (Rules never see it, so what they
    write can't.) Raises UserError for an unknown kind.
    """
    if kind not in CHECKS:
        raise UserError(f"unknown perturbation '{kind}'; choose from {', '.join(CHECKS)}")
    if not text.strip():
        return "empty"
    if text.strip() == original.strip():
        return "unchanged"
    return CHECKS[kind](original, text, novelty) or leak(original, text, answer)


def leak(original: str, text: str, answer: str) -> str:
    """Reason where `text` holds the answer more often than `original` does, or ""."""
    wanted = re.sub(r"[\s$]|\\boxed", "", answer).lower()
    before, after = (re.sub(r"[\s$]", " ", t).lower() for t in (original, text))
    if not wanted:
        return ""
    # a longer answer may be hidden inside a string ("k1155x"); one digit or letter only counts where it stands alone
    edge = r"[^\W_]" if len(wanted) == 1 else r"\d" if wanted.isdigit() else r"[^\W\d_]"
    found = re.compile(rf"(?<!{edge}){re.escape(wanted)}(?!{edge})")
    return "the text gives the answer away" if len(found.findall(after)) > len(found.findall(before)) else ""


# ---- paraphrase ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """A unit of comparison: its role (text.role; "phrase" for a synonym with a protected word), and canonical text."""

    role: str
    text: str


def canonical(items: Sequence[Token]) -> list[Item]:
    """Tokens without white space, glue, and marks that touch no mathematics; synonyms of the phrase table as one item
    of their class; the end of a sentence as an item of role "end"."""
    kept = [i for i, t in enumerate(items) if t.kind != "space"]
    apart = _told_apart(items)
    out: list[Item] = []
    at = 0
    while at < len(kept):
        length, name = _phrase(items, kept, at)
        if length and name not in apart:
            out.append(Item("phrase" if name in phrases.FROZEN_CLASSES else "word", name))
            at += length
            continue
        item = _mark(items, kept, at) if items[kept[at]].kind == "mark" else _item(items, kept, at)
        if at and _breaks_rows(items, kept[at - 1], kept[at]):
            out.append(Item("mark", "line break"))
        at += 1
        if item is not None and not (item.role == "end" and (not out or out[-1] == item)):
            out.append(item)
    return out if out and out[-1] == END else [*out, END]


END = Item("end", ".")
_VALUES = ("number", "number word", "math", "variable", "label")


def _item(items: Sequence[Token], kept: Sequence[int], at: int) -> Item | None:
    """The item of a token that is no mark; None for glue."""
    i = kept[at]
    part, word, low = role(items, i), items[i].text, items[i].text.lower()
    following = items[kept[at + 1]] if at + 1 < len(kept) else None
    if items[i].kind != "word" or part == "variable":
        return Item(part, word)
    if low == "a" and _names_something(items, word, following):
        return Item("variable", word)
    if low in ("was", "were", "did", "been"):
        return Item("tense", "was" if low == "were" else low)
    if low in lexicon.GLUE:
        counts = following is not None and (
            role(items, kept[at + 1]) == "number word" or following.text.lower() in ("few", "little", "lot")
        )
        return Item("article", low) if counts and low in ("a", "an", "the") else None
    if part == "word":
        return Item(part, vocabulary.ACTS.get(low, low))
    return Item(part, low if part in ("number word", "logic", "unit", "keyword") else word)


def _names_something(items: Sequence[Token], word: str, following: Token | None) -> bool:
    """Whether "a" or "A" is a variable or a point rather than an article."""
    if following is None or following.kind in ("symbol", "mark"):
        return following is None or following.text not in "([{\"'“‘"
    if following.kind == "word" and following.text.lower() in vocabulary.AFTER_A_NAME:
        return True
    others = {t.text for t in items if t.kind == "word" and len(t.text) == 1 and t.text.isupper()}
    return word == "A" and bool(others - {"A", "I"})


def _mark(items: Sequence[Token], kept: Sequence[int], at: int) -> Item | None:
    """The end of a sentence, or a mark that touches mathematics (5!, f', 3, 4, a : b, 1, ..., n); else None."""
    i = kept[at]
    mark = items[i]
    before, after = (items[kept[j]] if 0 <= j < len(kept) else None for j in (at - 1, at + 1))
    touches = before is not None and before.end == mark.start
    dots = [t for t in (before, after) if t is not None and t.text == mark.text == "."]
    if mark.text == "…" or any(t.start == mark.end or t.end == mark.start for t in dots):
        return Item("mark", "…") if not touches or before is None or before.text != "." else None
    value = before is not None and (role(items, kept[at - 1]) in _VALUES or before.text in ")]}")
    if mark.text in "!'’\"”" and touches and value and (mark.text != "!" or after is not None):
        return Item("mark", "'" if mark.text == "’" else mark.text)
    if mark.text in ".?!" and (after is None or after.start > mark.end):
        return END
    if value and after is not None and (role(items, kept[at + 1]) in _VALUES or after.text in "-−+([{\\"):
        return Item("mark", mark.text)
    return None


def _breaks_rows(items: Sequence[Token], i: int, j: int) -> bool:
    """Whether a line break between tokens i and j parts rows of a table or of formulas rather than prose."""
    plain = items[i].kind in ("word", "mark") or items[j].kind in ("word", "mark")
    return not plain and any(t.kind == "space" and "\n" in t.text for t in items[i + 1 : j])


def _told_apart(items: Sequence[Token]) -> set[str]:
    """Classes of the phrase table two of whose words stand side by side in the text, so that each means its own."""
    words = {vocabulary.ACTS.get(t.text.lower(), t.text.lower()) for t in items if t.kind == "word"}
    return {"make"} if len(words & {"make", "earn", "produces"}) > 1 else set()


def _phrase(items: Sequence[Token], kept: Sequence[int], at: int) -> tuple[int, str]:
    """Length in tokens and class of the longest phrase of the table that starts here; (0, "") for none."""
    words: list[str] = []
    for i in kept[at : at + phrases.LONGEST_PHRASE]:
        if items[i].kind != "word" or (items[i].text[0].isupper() and not starts_sentence(items, i)):
            break
        words.append(items[i].text.lower())
    for length in range(len(words), 0, -1):
        name = phrases.CLASSES.get(tuple(words[:length]))
        if name is not None:
            return length, name
    return 0, ""


def _paraphrase(original: str, text: str, novelty: float) -> str:
    before, after = tokens(original), tokens(text)
    old, new = canonical(before), canonical(after)
    if old == new:
        return ""
    if frozen := _compare(*([i for i in items if i.role != "word"] for items in (old, new))):
        return frozen
    return _novel(before, after, novelty) if novelty else _compare(old, new)


def _compare(old: Sequence[Item], new: Sequence[Item]) -> str:
    """Reason that names the first difference, or ""."""
    for op, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if op == "equal":
            continue
        part = (old[i1] if i1 < i2 else new[j1]).role
        if part == "end":
            return "a sentence was added or removed, or ends elsewhere"
        was, now = (" ".join(i.text for i in items) or "nothing" for items in (old[i1:i2], new[j1:j2]))
        return f"{part} changed: {was[:60]} -> {now[:60]}"
    return ""


def _novel(before: Sequence[Token], after: Sequence[Token], novelty: float) -> str:
    """The check of paraphrases from outside: a few ordinary words replaced one by one, all else frozen.

    Frozen besides protected items and the question: words that say which way (vocabulary.FIXED), words the text holds
    twice, and words of the question. A new word must be none the text holds elsewhere.
    """
    old, new = canonical(before), canonical(after)
    asked = canonical(_question(before))
    if reason := _compare(asked, canonical(_question(after))):
        return f"question: {reason}"
    plain = [i.text for i in old if i.role == "word"]
    fixed = {w for w in plain if plain.count(w) > 1} | {i.text for i in asked} | vocabulary.FIXED | lexicon.HINTS
    cut = [[i if i.role != "word" or i.text in fixed else None for i in items] for items in (old, new)]
    if cut[0] != cut[1]:
        names = [[i or Item("word", "_") for i in items] for items in cut]
        return f"not word for word: {_compare(*names)}"
    changed = [n.text for o, n in zip(old, new, strict=True) if o != n]
    if repeated := sorted(set(changed) & set(plain)):
        return f"a word of the text stands in another's place: {', '.join(repeated)}"
    share = len(changed) / max(len(plain), 1)
    return f"{share:.0%} of the ordinary words changed (at most {novelty:.0%})" if share > novelty else ""


def _question(items: Sequence[Token]) -> Sequence[Token]:
    """The tokens of the last sentence."""
    last = max((i for i, t in enumerate(items) if t.kind not in ("space", "mark")), default=0)
    starts = [i for i in range(last + 1) if items[i].kind not in ("space", "mark") and starts_sentence(items, i)]
    return items[starts[-1] if starts else 0 :]


# ---- typo ------------------------------------------------------------------------------------------


def _typo_noise(original: str, text: str, novelty: float) -> str:
    before, after = tokens(original.strip()), tokens(text.strip())
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
    if old[0] != new[0] and sorted(old[:2]) != sorted(new[:2]):
        return f"the first letter changed: {old} -> {new}"  # boats -> coats: too often a word
    known = stem(new.lower()) in _STEMS or not is_misspelling(before, old, new)
    return f"another word of its own: {old} -> {new}" if known else ""


_STEMS = frozenset(map(stem, KNOWN | vocabulary.SCENE | vocabulary.FIXED))


# ---- counterfactual --------------------------------------------------------------------------------


def _counterfactual(original: str, text: str, novelty: float) -> str:
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


CHECKS: dict[str, Callable[[str, str, float], str]] = {
    "paraphrase": _paraphrase,
    "typo_noise": _typo_noise,
    "scenario_wrap": framing.scenario_wrap,
    "irrelevant_context": lambda original, text, novelty: framing.irrelevant_context(original, text),
    COUNTERFACTUAL: _counterfactual,
}

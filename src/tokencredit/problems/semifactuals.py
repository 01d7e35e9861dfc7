"""Semifactual perturbations by rules: other words, a typo, a frame, a meaningless tail; the answer stays.

Kinds and rules: SCAPO, arXiv 2609.40360, section 2. The paper asks a large model for all four; here rules write
them, so they cost nothing and can be repeated, at the price of tamer paraphrases. Every text passes the
validator; a problem for which a rule finds nothing gets an invalid row that says so, and is never used.

`make` draws from a generator seeded by (seed, problem_id, kind) alone: a row depends neither on its neighbours
nor on their order.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokencredit.problems import phrases, synthetic
from tokencredit.problems.counterfactuals import change_number
from tokencredit.problems.text import Token, is_english, starts_sentence, tokens
from tokencredit.problems.typos import misspell
from tokencredit.problems.validator import COUNTERFACTUAL, decapitalisable, lower_first, validate
from tokencredit.study.seeds import derive

TRIES = 24  # drafts per row before a rule gives up
GIVE_UP = 8  # drafts without any text

# Frames in front of the text; each reads on with the first sentence, so none says anything about the scene.
PREFIXES = (
    "During a classroom warm-up",
    "On a quiet afternoon",
    "While the rain falls outside",
    "Over a pot of tea",
    "At the weekly club meeting",
    "In a corner of the library",
    "Just before the bell rings",
    "On the train home",
)
PLANTED = tuple(synthetic.SCENARIOS)  # the corpus's own scenarios: where the planted dependence shows
# Frames that stand as a sentence of their own, for texts whose first word has to keep its capital.
OPENERS = (
    "Here is something for a quiet afternoon.",
    "This came up over a pot of tea.",
    "From the wall of the club room.",
)
CLOSERS = ("(Shared during a classroom warm-up.)", "(Seen on the wall of the club room.)", "(Heard on the train home.)")

TAUTOLOGIES = (
    "and true is true", "and blue is blue", "and today is today", "as ever, here is here", "still, snow is snow",
    "and what is done is done", "indeed, enough is enough", "and bread is bread",
)  # fmt: skip
LABELS = ("tag", "ref", "id", "memo")


def make(
    problems: Iterable[Mapping[str, Any]], kinds: Sequence[str], seed: int, per_kind: int = 1
) -> list[dict[str, Any]]:
    """Rows of the table `semifactuals`: `per_kind` per problem and kind, in the order of problems and kinds.

    Texts of one problem and kind differ from each other; where the rule runs out there is one row less, and
    where it finds none, one invalid row with the reason.
    """
    rows = []
    for problem in problems:
        for kind in kinds:
            rows += _rows(problem, kind, seed, per_kind)
    return rows


def _rows(problem: Mapping[str, Any], kind: str, seed: int, per_kind: int) -> list[dict[str, Any]]:
    rng = random.Random(derive(seed, "semifactual", problem["problem_id"], kind))
    original, write = problem["problem"], RULES[kind]
    found: dict[str, None] = {}
    refused, nothing = "", 0
    for _ in range(TRIES * per_kind):
        text = write(rng, original)
        nothing += not text
        reason = validate(kind, original, text) if text else ""
        if text and not reason:
            found.setdefault(text)
        refused = refused or reason
        if len(found) == per_kind or nothing == GIVE_UP:
            break
    if found:
        return [row(problem["problem_id"], kind, text) for text in found]
    name = kind.replace("_", " ")
    return [
        row(problem["problem_id"], kind, "", reason=f"no valid {name} found" + (f" ({refused})" if refused else ""))
    ]


def row(problem_id: str, kind: str, text: str, origin: str = "rule", reason: str = "") -> dict[str, Any]:
    """One row of the table `semifactuals`; valid iff there is no reason against it."""
    return {
        "problem_id": problem_id, "kind": kind, "text": text, "origin": origin, "valid": not reason, "reason": reason,
    }  # fmt: skip


# ---- paraphrase ------------------------------------------------------------------------------------


def paraphrase(rng: random.Random, text: str) -> str:
    """The text in other words; "" where no rule applies. A synthetic story is told in its other forms."""
    story = synthetic.parse(text)
    if story is not None:
        return synthetic.rephrase(rng, story).text
    edits = [*_swaps(rng, text), *_questions(text)]
    rng.shuffle(edits)
    chosen: list[tuple[int, int, str]] = []
    wanted = rng.randint(1, 3)
    for start, end, new in edits:
        if len(chosen) < wanted and all(end <= s or start >= e for s, e, _ in chosen):
            chosen.append((start, end, new))
    for start, end, new in sorted(chosen, reverse=True):
        text = text[:start] + new + text[end:]
    return text if chosen else ""


def _swaps(rng: random.Random, text: str) -> list[tuple[int, int, str]]:
    """(start, end, replacement) for every place of the prose where a phrase of the table fits."""
    free = _prose_mask(text)
    out = []
    for swap, pattern in _SWAP_PATTERNS:
        for match in pattern.finditer(text):
            start, end = match.span()
            if not all(free[start:end]) or not _fits(swap, text, start, end):
                continue
            new = rng.choice(swap.targets)
            new = new[0].upper() + new[1:] if match.group()[0].isupper() else new
            out.append(_with_article(text, start, end, new))
    return out


_SWAP_PATTERNS = [
    (s, re.compile(r"(?<![\w\\-])" + r"\s+".join(map(re.escape, s.source.split())) + r"(?![\w-])", re.IGNORECASE))
    for s in phrases.SWAPS
]


def _fits(swap: phrases.Swap, text: str, start: int, end: int) -> bool:
    before = not swap.before or re.search(swap.before, text[max(0, start - 80) : start]) is not None
    return before and (not swap.after or re.match(swap.after, text[end : end + 80]) is not None)


def _with_article(text: str, start: int, end: int, new: str) -> tuple[int, int, str]:
    """The edit, widened to the indefinite article before it where the new word's sound asks for the other one."""
    found = re.search(r"\b(an?)\s+$", text[:start], re.IGNORECASE)
    if found is None:
        return start, end, new
    vowel = new[0].lower() in "aeiou" and not new.lower().startswith(("one", "uni", "use"))
    article = found[1][0] + ("n" if vowel else "")
    return found.start(), end, f"{article}{text[found.end(1) : start]}{new}"


def _prose_mask(text: str) -> list[bool]:
    """Per character: whether it lies in a word, white space or mark (not in mathematics, markup or a number)."""
    free = [False] * len(text)
    for token in tokens(text):
        if token.kind in ("word", "space", "mark"):
            free[token.start : token.end] = [True] * len(token.text)
    return free


def _questions(text: str) -> list[tuple[int, int, str]]:
    """Edits that turn a sentence: "What is the ..?" into "Find the ...", and others of `phrases.TURNS`."""
    items = tokens(text)
    marks = [i for i, t in enumerate(items) if t.kind == "mark" and t.text in ".?"]
    marks = [i for i in marks if i + 1 == len(items) or items[i + 1].kind == "space"]
    out = []
    for stop in marks:
        for i in range(stop):
            opens = starts_sentence(items, i) or (i > 1 and items[i - 2].text == "," and items[i - 1].kind == "space")
            if items[i].kind == "word" and opens and (edit := _turn(items[i : stop + 1])):
                out.append(edit)
    return out


def _turn(sentence: Sequence[Token]) -> tuple[int, int, str] | None:
    """The edit that turns this one sentence by the first rule of `phrases.TURNS` that fits."""
    if any(t.kind == "mark" and t.text in ".?!" for t in sentence[:-1]):
        return None
    whole = "".join(t.text for t in sentence)
    if _TWO_ASKS.search(whole):
        return None
    for pattern, new, mark in _TURNS:
        if found := pattern.fullmatch(whole):
            parts = found.groupdict()
            parts |= {"third": _third_person(parts["third"])} if parts.get("third") else {}
            text = new.format(**parts) + mark
            return sentence[0].start, sentence[-1].end, text if whole[0].isupper() else lower_first(text)
    return None


def _third_person(verb: str) -> str:
    return "has" if verb == "have" else verb + "s"


_TURNS = [(re.compile(pattern, re.DOTALL), new, mark) for pattern, new, mark in phrases.TURNS]
_TWO_ASKS = re.compile(
    r";|,\s+and\b|\banswer|\band\s+(?:the|what|how)\b|\b(?:and|then)\s+(?:give|find|express|prove)\b"
)


# ---- frame, tail -----------------------------------------------------------------------------------


def scenario_wrap(rng: random.Random, text: str) -> str:
    """The text in a frame: a phrase in front of it, or a sentence before or after it.

    A text that opens with one of the corpus's scenarios keeps it, behind a neutral phrase ("On the train home,
    on a rainy day, ..."); the corpus's scenarios themselves only go where there is none yet.
    """
    framed = any(text.startswith(f"{s}, ") for s in PLANTED)
    if not is_english(text):
        return ""
    keeps_capital = not decapitalisable(text) and tokens(text)[0].kind == "word" and synthetic.parse(text) is None
    shape = rng.choice(("sentence", "closer") if keeps_capital else ("phrase", "phrase", "phrase", "closer"))
    if shape == "sentence":
        return f"{rng.choice(OPENERS)} {text}"
    if shape == "closer":
        return f"{text.rstrip()} {rng.choice(CLOSERS)}"
    pool = PREFIXES if framed or rng.random() < 0.5 else PLANTED
    return f"{rng.choice(pool)}, {lower_first(text) if decapitalisable(text) else text}"


def irrelevant_context(rng: random.Random, text: str) -> str:
    """The text unchanged, then a tautology, a random string, or a bracketed tag (in turn by chance).

    Tags include the corpus's own hash tags in brackets, where the planted dependence shows.
    """
    shape = rng.choice(("tautology", "random", "bracket") if is_english(text) else ("random", "bracket"))
    if shape == "tautology":
        tail = rng.choice(TAUTOLOGIES)
    elif shape == "random":
        tail = _random_string(rng, rng.randint(6, 12))
    elif rng.random() < 0.5:
        tail = f"[{rng.choice(LABELS)}: {rng.choice(tuple(synthetic.TAGS))}]"
    else:
        tail = f"[{rng.choice(LABELS)}: {_random_string(rng, rng.randint(5, 8))}]"
    return f"{text.rstrip()} {tail}"


def _random_string(rng: random.Random, length: int) -> str:
    """Lower-case letters and digits, a letter first, at least two of each."""
    while True:
        tail = "".join(rng.choices(string.ascii_lowercase + string.digits, k=length - 1))
        drawn = rng.choice(string.ascii_lowercase) + tail
        if sum(c.isdigit() for c in drawn) >= 2 and sum(c.isalpha() for c in drawn) >= 2:
            return drawn


RULES = {
    "paraphrase": paraphrase,
    "typo_noise": misspell,
    "scenario_wrap": scenario_wrap,
    "irrelevant_context": irrelevant_context,
    COUNTERFACTUAL: change_number,
}

"""The validator: the worked example, every rule by a case, and hostile edits by the hundred."""

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokencredit.problems import synthetic
from tokencredit.problems.semifactuals import RULES, make
from tokencredit.problems.text import problem_id
from tokencredit.problems.validator import COUNTERFACTUAL, SEMIFACTUAL, validate
from tokencredit.study.errors import UserError

# Written for these tests; between them: every delimiter, an environment, units, labels, names, money, lists.
TEXTS = [
    "What is the smallest odd number with four different prime factors?",
    "Let $f(x)=x^2+3x$ be a function such that $f(a)=10$ for some $a>0$. Find the value of $f(a+1)$.",
    "In triangle ABC, a point D lies on BC such that \\(BD = 3\\) and \\(DC = 7\\). Compute the area of ABD in cm.",
    "Maria walks 12 miles at a speed of 3 miles per hour. Each mile costs $2.50. How many hours does she need?",
    "Suppose that \\[ x + y \\le 7, \\qquad xy \\ge \\frac{5}{2}. \\] Determine the largest possible value of $x$.",
    "Solve the system \\begin{align*} a+b&=9 \\\\ a-b&=4 \\end{align*} and find all integers n with n < 17.",
    "How many ways are there to choose 3 of 11 distinct books, if the first 2 can't both be chosen? Give the number.",
    "Peter bought \\textbf{6} pens for 4% less than usual. What is the price of one pen, if $p = \\alpha + 20$?",
] + [row["problem"] for split in synthetic.SPLITS for row in synthetic.generate(split, 3, seed=8)]


def rows_of(texts: list[str], kinds: tuple[str, ...] = SEMIFACTUAL, seed: int = 0, per_kind: int = 3) -> list[dict]:
    return make([{"problem_id": problem_id(t), "problem": t} for t in texts], kinds, seed, per_kind)


Edit = Callable[[random.Random, str, str], str]
ORIGINAL = {problem_id(t): t for t in TEXTS}
VALID = [(r["kind"], ORIGINAL[r["problem_id"]], r["text"]) for r in rows_of(TEXTS) if r["valid"]]


def test_the_worked_example() -> None:
    """Section 2 of the paper's set-up, for a problem whose answer is 1155."""
    accepted = {
        "paraphrase": "What is the smallest odd number that has four distinct prime factors?",
        "typo_noise": "What is the smallest odd number with four diferent prime factors?",
        "scenario_wrap": "During a classroom warm-up, " + TEXTS[0].replace("What", "what"),
        "irrelevant_context": "What is the smallest odd number with four different prime factors? [tag: mx93q]",
    }
    for kind, text in accepted.items():
        for other in SEMIFACTUAL:
            assert (validate(other, TEXTS[0], text) == "") == (kind == other), (kind, other)


def test_every_text_has_all_four_kinds() -> None:
    assert {(k, t) for k, t, _ in VALID} == {(k, t) for k in SEMIFACTUAL for t in TEXTS}


# ---- edits that change what is asked: refused on top of any valid perturbation of any kind ------------


def change_number(rng: random.Random, text: str, original: str) -> str:
    spots = [m for m in re.finditer(r"\d+", text) if m.group() in original]
    spot = rng.choice(spots)
    return text[: spot.start()] + str(int(spot.group()) + rng.randint(1, 9)) + text[spot.end() :]


def drop_number(rng: random.Random, text: str, original: str) -> str:
    spot = rng.choice(list(re.finditer(r"\b\d+\b", original)))
    return text.replace(spot.group(), "", 1)


def change_command(rng: random.Random, text: str, original: str) -> str:
    old = rng.choice([c for c in ("\\le", "\\ge", "\\frac", "\\alpha", "\\qquad", "\\textbf") if c in original])
    return text.replace(old, old + "x", 1)


def double_backslash(rng: random.Random, text: str, original: str) -> str:
    return text.replace("\\", "\\\\", 1)


def change_variable(rng: random.Random, text: str, original: str) -> str:
    spots = list(re.finditer(r"(?<![A-Za-z\\])[b-hj-z](?![A-Za-z])|\bABC\b|\bABD\b|\bBC\b", text))
    spot = rng.choice(spots)
    return text[: spot.start()] + "Q" + text[spot.end() :]


def change_unit(rng: random.Random, text: str, original: str) -> str:
    old = rng.choice([u for u in ("miles", "cm", "hour", "hours", "%") if u in original])
    return text.replace(old, rng.choice(["km", "days", "inches"]), 1)


def change_sign(rng: random.Random, text: str, original: str) -> str:
    old, new = rng.choice([(o, n) for o, n in (("<", ">"), (">", "<"), ("\\le", "\\ge"), ("=", "<")) if o in original])
    return text.replace(old, new, 1)


def change_question(rng: random.Random, text: str, original: str) -> str:
    pairs = [
        ("smallest", "largest"), ("value", "square"), ("area", "perimeter"), ("hours", "minutes"),
        ("largest", "smallest"), ("all integers", "the sum of all integers"), ("number", "sum"), ("price", "weight"),
        ("How many ", "How many more "),
    ]  # fmt: skip
    last = max(text.rfind(o) for o, _ in pairs)
    old, new = next((o, n) for o, n in pairs if text.rfind(o) == last)
    return text[:last] + new + text[last + len(old) :]


def change_logic(rng: random.Random, text: str, original: str) -> str:
    old, new = rng.choice(
        [
            (o, n)
            for o, n in ((" is ", " is not "), (" are ", " are never "), (" all ", " some "), (" some ", " all "))
            if o in text
        ]
    )
    return text.replace(old, new, 1)


def change_name(rng: random.Random, text: str, original: str) -> str:
    old = rng.choice([n for n in ("Maria", "Peter", *synthetic.NAMES) if n in original])
    return text.replace(old, "Zoe")


def change_thing(rng: random.Random, text: str, original: str) -> str:
    old = rng.choice([n for n in (*synthetic.THINGS, "books", "pen", "point") if f" {n}" in original])
    return text.replace(f" {old}", " lamp")


def add_condition(rng: random.Random, text: str, original: str) -> str:
    added = rng.choice(
        [" Every one is red.", " Assume it is positive.", " Here 7 of them are lost.", " Note that it is even."]
    )
    stops = [m.end() for m in re.finditer(r"[a-z0-9$)]\.(?= )", text)] or [0]
    at = rng.choice(stops)
    return text[:at] + (added if at else added.strip() + " ") + text[at:]


def add_clause(rng: random.Random, text: str, original: str) -> str:
    spots = [
        m.end() for m in re.finditer(r"\b(?:hours|cm|factors|value of|books|integers|price|apples|more|number)\b", text)
    ]
    at = rng.choice(spots)
    return (
        text[:at]
        + rng.choice([" that are positive", " greater than 2", ", none of them red,", " if x > 1"])
        + text[at:]
    )


def add_hint(rng: random.Random, text: str, original: str) -> str:
    return text.rstrip() + rng.choice(
        [" Hint: factor it.", " Use the formula.", " The answer is even.", " Think step by step."]
    )


def drop_sentence(rng: random.Random, text: str, original: str) -> str:
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    at = rng.choice(range(len(sentences)) if len(sentences) > 1 else [])
    return " ".join(sentences[:at] + sentences[at + 1 :])


EDITS = (
    change_number, drop_number, change_command, double_backslash, change_variable, change_unit, change_sign,
    change_question, change_logic, change_name, change_thing, add_condition, add_clause, add_hint, drop_sentence,
)  # fmt: skip


def hostile(edit: Edit, base: tuple[str, str, str], seed: int) -> str:
    """The edited text; "" where there is nothing to edit, or where the edit missed the original's own part."""
    _, original, text = base
    try:
        edited = edit(random.Random(seed), text, original)
    except (IndexError, StopIteration):
        return ""
    intact = original in edited and (original in text or original[1:] in text)
    return "" if edited in (text, original) or (intact and edited.startswith(text) is False) else edited


def bases(edit: Edit, kinds: tuple[str, ...] = SEMIFACTUAL) -> list[tuple[str, str, str]]:
    return [v for v in VALID if v[0] in kinds and any(hostile(edit, v, seed) for seed in range(3))]


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.__name__)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_an_edit_that_changes_what_is_asked_is_refused(edit: Edit, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(bases(edit)))
    edited = hostile(edit, base, data.draw(st.integers(0, 10**9)))
    assume(edited)
    assert validate(base[0], base[1], edited) != "", (base[0], edited)


NOVEL = (change_number, change_unit, change_name, add_condition, change_question, change_variable, change_logic)


@pytest.mark.parametrize("edit", NOVEL, ids=lambda e: e.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_novelty_does_not_open_the_door(edit: Edit, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(bases(edit, ("paraphrase",))))
    edited = hostile(edit, base, data.draw(st.integers(0, 10**9)))
    assume(edited)
    assert validate("paraphrase", base[1], edited, novelty=0.3) != "", edited


# ---- one case per rule ----------------------------------------------------------------------------------

WALK = "Maria walks to the garden. She picks 12 flowers. How many flowers does she have?"


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("paraphrase", WALK, "unchanged"),
        ("paraphrase", "", "empty"),
        ("paraphrase", WALK.replace("12", "13"), "number changed: 12 -> 13"),
        ("paraphrase", WALK.replace("Maria", "Anna"), "name changed: Maria -> Anna"),
        ("paraphrase", WALK.replace("walks to", "walks from"), "word changed: to -> from"),
        ("paraphrase", WALK.replace("flowers", "roses", 1), "word changed"),
        ("paraphrase", WALK.replace(" She", " She is glad. She"), "a sentence was added"),
        ("paraphrase", WALK.replace(" She picks", " Picks"), "changed"),
        ("typo_noise", WALK.replace("garden", "gadren"), ""),
        ("typo_noise", WALK.replace("garden", "gardenn"), ""),
        ("typo_noise", WALK.replace("garden", "gaden"), ""),
        ("typo_noise", WALK.replace("garden", "garxen"), ""),
        ("typo_noise", WALK.replace("garden", "gadrne"), "not exactly one character edit"),
        ("typo_noise", WALK.replace("garden", "gaxxen"), "not exactly one character edit"),
        ("typo_noise", WALK.replace("garden", "gadren").replace("picks", "piks"), "2 words changed"),
        ("typo_noise", WALK.replace("Maria", "Mariia"), "name changed"),
        ("typo_noise", WALK.replace("12", "21"), "number changed"),
        ("typo_noise", WALK.replace("garden. ", "garden.  "), "0 words changed|space changed"),
        ("typo_noise", WALK.replace("walks to", "walksto"), "more than one word"),
        ("typo_noise", WALK.replace("many", "mamy"), "keyword changed"),
        ("typo_noise", WALK.replace("garden", "gard7n"), "changed|more than one|misspelt"),
        ("typo_noise", WALK.replace("flowers.", "flower."), "another word of its own"),
        ("scenario_wrap", f"On a rainy day, {WALK}", ""),
        ("scenario_wrap", f"{WALK} (Seen on the wall of the club room.)", ""),
        ("scenario_wrap", WALK.replace(". She", ". During a short break, She"), ""),
        ("scenario_wrap", f"On a rainy day, m{WALK[1:]}", "lost its capital"),
        ("scenario_wrap", f"On day 5, {WALK}", "frame holds a number"),
        ("scenario_wrap", f"With $x=2$, {WALK}", "frame holds a math"),
        ("scenario_wrap", f"With two friends, {WALK}", "frame holds a number word"),
        ("scenario_wrap", f"In the garden, {WALK}", "frame shares words"),
        ("scenario_wrap", f"After meeting Ben, {WALK}", "frame holds a name"),
        ("scenario_wrap", f"If it rains, {WALK}", "frame holds a logic"),
        ("scenario_wrap", f"{WALK} Recall the rule.", "hint"),
        ("scenario_wrap", f"{WALK} Who saw it?", "frame"),
        ("scenario_wrap", f"On a rainy day {WALK}", "not set off"),
        ("scenario_wrap", f"On a rainy day, {WALK} (Seen on the wall.)", "not intact"),
        ("scenario_wrap", f"On a rainy day, {WALK.replace('picks', 'takes')}", "not intact"),
        ("scenario_wrap", "On " + "and on " * 9 + f"a rainy day, {WALK}", "frame of"),
        ("irrelevant_context", f"{WALK} and true is true", ""),
        ("irrelevant_context", f"{WALK} k3v9qp", ""),
        ("irrelevant_context", f"{WALK} [tag: mx93q]", ""),
        ("irrelevant_context", f"{WALK} [memo: #draft]", ""),
        ("irrelevant_context", f"{WALK} [question: mx93q]", "holds the word 'question'"),
        ("irrelevant_context", f"{WALK} Consider it.", "holds the word 'consider'"),
        ("irrelevant_context", f"{WALK} 123456", "no tautology"),
        ("irrelevant_context", f"{WALK} 12345km", "no tautology"),
        ("irrelevant_context", f"{WALK} abcdef", "no tautology"),
        ("irrelevant_context", f"{WALK} a1b2c", "no tautology"),
        ("irrelevant_context", f"{WALK} a1b2c3d4e5f6g7", "no tautology"),
        ("irrelevant_context", f"{WALK} [5]", "no tautology"),
        ("irrelevant_context", f"{WALK} k3v9qp m4w8rt", "no tautology"),
        ("irrelevant_context", f"{WALK} and true is false", "no tautology"),
        ("irrelevant_context", f"{WALK} and two is two", "word of mathematics"),
        ("irrelevant_context", f"{WALK} [hint: mx93q]", "word of mathematics"),
        ("irrelevant_context", f"{WALK} and garden is garden", "speaks of the text"),
        ("irrelevant_context", f"{WALK}k3v9qp", "not unchanged"),
        ("irrelevant_context", f"k3v9qp {WALK}", "not unchanged"),
        (COUNTERFACTUAL, WALK.replace("12", "14"), ""),
        (COUNTERFACTUAL, WALK.replace("12", "012"), "not exactly one number"),
        (COUNTERFACTUAL, WALK.replace("12", "14").replace("garden", "yard"), "not exactly one number"),
        (COUNTERFACTUAL, WALK.replace("picks", "takes"), "not exactly one number"),
    ],
)  # fmt: skip
def test_rules(kind: str, text: str, reason: str) -> None:
    found = validate(kind, WALK, text)
    assert re.search(reason, found) if reason else found == "", found


def test_a_counterfactual_story_must_change_its_answer() -> None:
    story = "Tom has 5 pens. The number doubles. The bus comes in 12 minutes. How many pens now?"
    assert validate(COUNTERFACTUAL, story, story.replace("5", "6")) == ""
    assert validate(COUNTERFACTUAL, story, story.replace("12", "13")) == "the answer stays the same"
    assert validate(COUNTERFACTUAL, story, story.replace("5", "50")) == "a value leaves 1..99"


def test_novelty_admits_other_ordinary_words_outside_the_question() -> None:
    text = WALK.replace("picks", "plucks")
    assert "changed" in validate("paraphrase", WALK, text)
    assert validate("paraphrase", WALK, text, novelty=0.2) == ""
    assert "at most 5%" in validate("paraphrase", WALK, text, novelty=0.05)
    assert "question" in validate("paraphrase", WALK, WALK.replace("flowers does", "roses does"), novelty=0.5)


# What the fuzz found: each of these was once accepted.
HOLES = [
    ("paraphrase", "Evaluate f'(2) + 3.", "Evaluate f(2) + 3.", "mark changed"),
    ("paraphrase", "Is 5!? Find it.", "Is 5? Find it.", "mark changed"),
    ("paraphrase", "Add 1, 2, ..., 10.", "Add 1, 2, 10.", "mark changed"),
    ("paraphrase", "Take f(12, 3) here.", "Take f(12 3) here.", "mark changed"),
    ("paraphrase", "The ratio a : b is 5.", "The ratio a b is 5.", "changed"),
    ("paraphrase", "Use the table\n1 2\n3 4 here.", "Use the table\n1 2 3 4 here.", "mark changed: line break"),
    ("paraphrase", "How many pens does Tom have?", "How many pens did Tom have?", "tense changed"),
    ("paraphrase", "Tom is 5. How old is Ann?", "Tom was 5. How old is Ann?", "tense changed"),
    ("paraphrase", "Workers painted 5 walls.", "Workers paint 5 walls.", "word changed"),
    ("paraphrase", "Let a + b = 5. Find b.", "Let + b = 5. Find b.", "variable changed"),
    ("paraphrase", "A is older than B. Find A.", "Is older than B. Find A.", "variable changed"),
    ("paraphrase", "Tom makes 5 toys and earns 9 coins. How many does he earn?",
     "Tom makes 5 toys and earns 9 coins. How many does he make?", "word changed: earn -> make"),
    ("paraphrase", "Find x. If y = 2 then z = 3.", "Find x if y = 2. Then z = 3.", "ends elsewhere"),
    ("paraphrase", "The brother eats 5 plums.", "The brothers eats 5 plums.", "word changed: brother -> brothers"),
    ("paraphrase", "Tom eats a third box.", "Tom eats the third box.", "article changed"),
    ("paraphrase", "A few remain of 5.", "Few remain of 5.", "article changed"),
    ("typo_noise", "Tom sees 5 boats now.", "Tom sees 5 coats now.", "first letter"),
    ("typo_noise", "There are 5 stories here.", "There are 5 stores here.", "another word of its own"),
    ("scenario_wrap", "A jar has 5 balls.", "With replacement, a jar has 5 balls.", "condition"),
    ("scenario_wrap", "A die shows 5.", "A die shows 5. (The die is loaded.)", "condition"),
    ("scenario_wrap", "A pen costs 5.", "A pen costs 5. (Here the pen leaks.)", "shares words"),
    ("scenario_wrap", "Find the value of 5.", "Over the reals, find the value of 5.", "condition"),
    ("scenario_wrap", "Find the value of 5.", "In tropical arithmetic, find the value of 5.", "frame holds|do not know"),
    ("scenario_wrap", "Find the value of 5.", "After careful pruning, find the value of 5.", "hint|do not know"),
    ("scenario_wrap", "Tom eats 5 plums.", "Tom eats 5 plums. (Here they vanish.)", "pronoun"),
    ("scenario_wrap", "Find the value of 5.", "Find the value of 5. (Heard: odd.)", "keyword"),
    ("irrelevant_context", "Find the remainder of 5.", "Find the remainder of 5. mod1000", "spells a word: mod"),
    ("irrelevant_context", "Find the value of 5.", "Find the value of 5. times100", "spells a word: times"),
    ("irrelevant_context", "Find the value of 5.", "Find the value of 5. a12km34", "spells a word: km"),
    ("irrelevant_context", "Find the value of 5.", "Find the value of 5. [ans: 42ab]", "word of mathematics: ans"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "original", "text", "reason"), HOLES)
def test_what_the_fuzz_found(kind: str, original: str, text: str, reason: str) -> None:
    assert re.search(reason, found := validate(kind, original, text)), found


NOVEL_TEXT = (
    "Tom buys 5 wooden boxes at the market. He paints the small lid of one box slowly. How many boxes does he have?"
)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (("paints", "colours"), ""),
        (("wooden", "sturdy"), ""),
        (("buys", "sells"), "not word for word"),
        (("slowly", "very slowly"), "not word for word"),
        (("slowly", "before lunch"), "not word for word"),
        (("small lid", "lid"), "not word for word"),
        (("wooden", "market"), "stands in another's place"),
        (("at the market", "from the market"), "not word for word"),
        (("boxes at", "crates at"), "not word for word"),
        (("does he have", "does he want"), "question|changed"),
    ],
)
def test_novelty_replaces_word_for_word_what_is_said_once_and_has_no_opposite(
    edit: tuple[str, str], reason: str
) -> None:
    found = validate("paraphrase", NOVEL_TEXT, NOVEL_TEXT.replace(*edit, 1), novelty=1.0)
    assert re.search(reason, found) if reason else found == "", found


@pytest.mark.parametrize("frame", ["Posted in the hall.", "(Spotted on a Saturday trip.)", "This came up at lunch."])
def test_frames_that_are_sentences(frame: str) -> None:
    assert validate("scenario_wrap", WALK, f"{WALK} {frame}") == ""


def test_novelty_lets_a_few_unknown_words_into_a_frame() -> None:
    text = f"During a quiet afternoon lesson in the orangery, {WALK}"
    assert "do not know to be idle: orangery" in validate("scenario_wrap", WALK, text)
    assert validate("scenario_wrap", WALK, text, novelty=0.3) == ""
    assert "do not know" in validate("scenario_wrap", WALK, f"In the orangery, {WALK}", novelty=0.3)


@pytest.mark.parametrize(
    ("answer", "tail", "leaks"),
    [("1155", "[tag: k1155x]", True), ("1155", "[tag: k11559]", False), ("7", "ab7cd7", False), ("$\\frac{1}{2}$", "[tag: k12x]", False),
     ("blue", "and blue is blue", True), ("snow", "and snowy is snowy", False), ("12", "[tag: a12b]", True), ("", "[tag: a12b]", False)],
)  # fmt: skip
def test_the_answer_must_not_stand_in_the_text(answer: str, tail: str, leaks: bool) -> None:
    found = validate("irrelevant_context", "Maria sings.", f"Maria sings. {tail}", answer=answer)
    assert found == ("the text gives the answer away" if leaks else "")


def test_unknown_kind() -> None:
    with pytest.raises(UserError, match=r"unknown perturbation 'wrap'.*scenario_wrap"):
        validate("wrap", "a", "b")


def test_rules_and_checks_cover_the_same_kinds() -> None:
    assert set(RULES) == {*SEMIFACTUAL, COUNTERFACTUAL}

"""Variants: what must not matter is put in, everything else stays, and the validators refuse what could matter."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tokencredit.problems.loading import load
from tokencredit.problems.text import problem_id
from tokencredit.problems.variants import made
from tokencredit.problems.variants_noise import check_characters, check_words
from tokencredit.problems.variants_noop import check, check_clause, sentence_starts, slots
from tokencredit.study.registry import Registry, resolve
from tokencredit.study.sources import RegistryProblems

STORY = "Ann has $12$ red marbles and buys $5$ more. Let $m$ be the number of her marbles. Find the remainder when $m$ is divided by $7$."
POINTING = "A box holds $12$ red marbles. Ben takes five of them. How many are left in it?"
TEXTS = (
    STORY,
    POINTING,
    "Find the number of positive integers $n$ with $n^2 < 50$.",
    "Let $ABC$ be a triangle with \\[AB = 5.\\]\nThe point $D$ lies on $BC$. What is the length of $AD$? [asy] draw((0,0)--(1,1)); [/asy]",
)


def row(text: str, answer: str = "3") -> dict[str, Any]:
    return {
        "problem_id": problem_id(text), "source": f"s#{problem_id(text)}", "problem": text, "answer": answer,
        "answer_kind": "integer", "choices": [], "tags": [],
    }  # fmt: skip


def variants(how: str, *texts: str, seed: int = 0) -> list[dict[str, Any]]:
    return made(how, [("set", [row(t) for t in texts])], seed)[0]


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


# ---- NoOp ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_clause_adds_one_new_number_and_takes_nothing_away(seed: int) -> None:
    for text, found in zip(TEXTS, variants("noop", *TEXTS, seed=seed), strict=True):
        new = Counter(numbers(found["problem"])) - Counter(numbers(text))
        assert sum(new.values()) == 1 and not set(new) & {*numbers(text), found["answer"]}
        cuts = [
            text[:i]
            for i in range(len(text) + 1)
            if found["problem"].endswith(text[i:]) and found["problem"].startswith(text[:i])
        ]
        assert any(not head or head.rstrip()[-1] in ".]?" for head in cuts)
        assert found["answer"] == "3"
        assert f"base:{problem_id(text)}" in found["tags"] and "set:set" in found["tags"]


def test_the_control_is_the_clause_without_its_number() -> None:
    for seed in range(10):
        for with_number, control in zip(
            variants("noop", *TEXTS, seed=seed), variants("noop_control", *TEXTS, seed=seed), strict=True
        ):
            one, other = with_number["problem"].split(), control["problem"].split()
            differing = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
            assert len(differing) == 1 and differing[0][0].isdigit() and differing[0][1].isalpha()


def test_a_clause_stands_before_the_question_and_never_where_a_pronoun_could_point_at_it() -> None:
    assert slots(STORY)[-1] == STORY.index("Find")
    assert slots(POINTING) == [0, POINTING.index("Ben")] or slots(POINTING) == [0]
    assert POINTING.index("How") not in slots(POINTING)
    assert slots(TEXTS[2]) == [0]


def test_sentences_start_after_closed_ones_only() -> None:
    text = "Mr. Smith has $x = 3.$ apples at St. Ives. He, e.g. today, eats 2.5 of them (see below.) Then \\[x = 1.\\] Find $x$."
    starts = [text[i : i + 4] for i in sentence_starts(text)]
    assert starts == ["Mr. ", "He, ", "Then", "Find"]


GOOD = "Meanwhile, a gardener has stored 37 dusty lanterns behind the barn. "
CLAUSES = [
    (GOOD, ""),
    ("Meanwhile, a gardener has stored 12 dusty lanterns behind the barn. ", "repeats a number: 12"),
    ("Meanwhile, a gardener has stored 98 dusty lanterns behind the barn. ", "repeats a number: 98"),  # the gold
    ("Meanwhile, a gardener has stored 37 dusty marbles behind the barn. ", "shares words"),
    ("Meanwhile, Bob has stored 37 dusty lanterns behind the barn. ", "holds a name"),
    ("Meanwhile, a gardener has stored $37$ dusty lanterns behind the barn. ", "holds a math"),
    ("Meanwhile, a gardener has stored 37 dusty lanterns or 38 teapots. ", "holds a logic"),
    ("Assume a gardener has stored 37 dusty lanterns behind the barn. ", "hint or condition"),
    ("Meanwhile, a gardener has stored 37 even lanterns behind the barn. ", "holds a keyword"),
    ("Meanwhile, a gardener has stored 37 meters of wool behind the barn. ", "holds a unit"),
    ("Meanwhile, a gardener has stored dusty lanterns behind the barn. ", "0 numbers, not 1"),
    ("A gardener came by. He has stored 37 dusty lanterns. ", "not one sentence"),
    ("Has a gardener stored 37 dusty lanterns? ", "not one sentence"),
    ("This problem has amused 37 gardeners. ", "hint or condition"),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "reason"), CLAUSES)
def test_clauses_that_could_matter_are_refused(clause: str, reason: str) -> None:
    said = check_clause(clause, STORY, "98", 1)
    assert reason in said and (said == "") == (reason == "")


def test_a_changed_problem_is_refused() -> None:
    at = STORY.index("Find")
    assert check(STORY, STORY[:at] + GOOD + STORY[at:]) == ""
    for bad in (
        STORY + " " + GOOD,
        STORY[:at] + GOOD + STORY[at:].replace("7", "8"),
        STORY[:20] + GOOD + STORY[20:],
        STORY,
    ):
        assert "not intact" in check(STORY, bad)


# ---- ThinkBench-like -----------------------------------------------------------------------------------


def test_four_variants_of_each_problem_keep_its_mathematics() -> None:
    found = variants("thinkbench", *TEXTS)
    assert [next(t for t in r["tags"] if t.startswith("variant:")) for r in found] == [
        f"variant:{kind}" for kind in ("scenario", "characters", "words", "appended")
    ] * len(TEXTS)
    for text, kinds in zip(TEXTS, zip(*[iter(found)] * 4, strict=True), strict=True):
        maths = re.findall(r"\$[^$]*\$|\\\[.*?\\\]|\[asy\].*?\[/asy\]", text)
        for variant in kinds:
            assert re.findall(r"\$[^$]*\$|\\\[.*?\\\]|\[asy\].*?\[/asy\]", variant["problem"]) == maths
            assert variant["problem"] != text
        assert kinds[3]["problem"].startswith(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (STORY.replace("marbles and", "marblees and"), ""),
        (STORY.replace("$12$", "$13$"), "math changed"),
        (STORY.replace("remainder", "remaindr"), "keyword changed"),
        (STORY.replace("marbles and buys", "pencils and buys"), "not a misspelt word"),
        (STORY.replace("buys ", ""), "added or removed"),
        (STORY, "0 words changed"),
    ],
)
def test_misspellings_that_could_matter_are_refused(text: str, reason: str) -> None:
    said = check_characters(STORY, text)
    assert reason in said and (said == "") == (reason == "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (STORY.replace("Find the", "Find"), ""),
        (STORY.replace("red marbles", "red marbles marbles"), ""),
        (STORY.replace("red marbles", "red"), "missing or new"),
        (STORY.replace("more", "no more"), "missing or new"),
        (STORY.replace("$5$ more", "$5$ $5$ more"), "missing or new"),
        (STORY, "unchanged"),
    ],
)
def test_word_noise_that_could_matter_is_refused(text: str, reason: str) -> None:
    said = check_words(STORY, text)
    assert reason in said and (said == "") == (reason == "")


# ---- whole sets ----------------------------------------------------------------------------------------


def test_texts_depend_on_the_seed_and_the_problem_alone() -> None:
    one = {r["problem_id"] for how in ("noop", "thinkbench") for r in variants(how, *TEXTS)}
    shuffled = list(TEXTS)
    random.Random(0).shuffle(shuffled)
    assert {r["problem_id"] for how in ("noop", "thinkbench") for r in variants(how, *shuffled)} == one
    assert {r["problem_id"] for how in ("noop", "thinkbench") for r in variants(how, *TEXTS, seed=1)} != one


def test_problems_without_a_valid_text_are_listed() -> None:
    rows, audit = made("thinkbench", [("s", [row("$2+2=$")])], 0)
    assert audit.as_json()["counts"]["dropped_no_words_found"] == 1
    assert audit.kept == len(rows) < audit.rows == 4


def test_pooled_years_keep_their_rows_and_count_shared_ones_once() -> None:
    rows, audit = made("pool", [("a", [row(TEXTS[0]), row(TEXTS[1])]), ("b", [row(TEXTS[1]), row(TEXTS[2])])], 0)
    assert [(r["problem"], r["tags"]) for r in rows] == [
        (TEXTS[0], ["set:a"]),
        (TEXTS[1], ["set:a"]),
        (TEXTS[2], ["set:b"]),
    ]
    assert audit.as_json()["counts"] == {"rows": 4, "kept": 3, "dropped_duplicate": 1}


@pytest.mark.parametrize(
    ("name", "rows"), [("aime_2024_2026", 90), ("noop_aime", 90), ("noop_aime_control", 90), ("thinkbench_aime", 360)]
)
@pytest.mark.parametrize("seed", [0, 7])
def test_real_sets_are_complete(name: str, rows: int, seed: int, shared: Path, tmp_path: Path) -> None:
    source = resolve(RegistryProblems(kind="registry", name=name), Registry(folder=str(shared / "data")))
    found = load(source, seed, tmp_path)
    assert len(found.rows) == rows and not found.audit.dropped
    assert Counter(t for r in found.rows for t in r["tags"] if t.startswith("set:")) == dict.fromkeys(
        ("set:aime_2024", "set:aime_2025", "set:aime_2026"), rows // 3
    )
    originals = {
        r["problem_id"]: r
        for r in load(
            resolve(RegistryProblems(kind="registry", name="aime_2024_2026"), Registry(folder=str(shared / "data"))),
            0,
            tmp_path,
        ).rows
    }
    for r in found.rows:
        bases = [t.removeprefix("base:") for t in r["tags"] if t.startswith("base:")]
        assert all(originals[b]["answer"] == r["answer"] for b in bases)
        assert len(bases) == (name != "aime_2024_2026")

"""Perturbations by rules: valid, different, repeatable, and independent of their neighbours."""

import json
import random
import re
from pathlib import Path

from tokencredit.problems import synthetic
from tokencredit.problems.semifactuals import CLOSERS, LABELS, OPENERS, PLANTED, PREFIXES, TAUTOLOGIES, make
from tokencredit.problems.text import problem_id
from tokencredit.problems.typos import misspell
from tokencredit.problems.validator import COUNTERFACTUAL, SEMIFACTUAL, validate
from tokencredit.study.tables import SCHEMAS

KINDS = (*SEMIFACTUAL, COUNTERFACTUAL)
PROBLEMS = [row for split in synthetic.SPLITS for row in synthetic.generate(split, 60, seed=5)]


def as_problem(text: str) -> dict:
    return {"problem_id": problem_id(text), "problem": text}


def test_every_synthetic_problem_has_every_kind() -> None:
    rows = make(PROBLEMS, KINDS, seed=1)
    assert len(rows) == len(PROBLEMS) * len(KINDS)
    texts = {p["problem_id"]: p["problem"] for p in PROBLEMS}
    for row in rows:
        assert list(row) == [c.name for c in SCHEMAS["semifactuals"]]
        assert row["valid"]
        assert row["reason"] == ""
        assert row["text"] != texts[row["problem_id"]]
        assert validate(row["kind"], texts[row["problem_id"]], row["text"]) == ""


def test_synthetic_answers_stay_but_for_counterfactuals() -> None:
    answers = {p["problem_id"]: int(p["answer"]) for p in PROBLEMS}
    for row in make(PROBLEMS, ("paraphrase", COUNTERFACTUAL), seed=2):
        story = synthetic.parse(row["text"])
        assert story is not None
        assert story.sound
        assert (story.answer == answers[row["problem_id"]]) == (row["kind"] == "paraphrase")


def test_rows_depend_on_seed_problem_and_kind_alone() -> None:
    some = PROBLEMS[::7]
    shuffled = random.Random(0).sample(some, len(some))
    key = lambda r: (r["problem_id"], r["kind"])  # noqa: E731
    wanted = sorted(make(some, KINDS, seed=3), key=key)
    assert sorted(make(shuffled, KINDS[::-1], seed=3), key=key) == wanted
    assert make(some[:1], KINDS[:1], seed=3)[0] in wanted
    assert sorted(make(some, KINDS, seed=4), key=key) != wanted


def test_acceptance_on_real_competition_problems(shared: Path) -> None:
    for name in ("aime_2024", "hmmt_feb_2025", "dapo_sample_27"):
        lines = (shared / "data" / f"{name}.jsonl").read_text().splitlines()
        problems = [as_problem(json.loads(line)["problem"]) for line in lines]
        rows = make(problems, SEMIFACTUAL, seed=0)
        assert sum(r["valid"] for r in rows) >= 0.97 * len(rows), name


def test_several_per_kind_are_distinct() -> None:
    rows = make(PROBLEMS[:10], SEMIFACTUAL, seed=1, per_kind=3)
    assert len({(r["problem_id"], r["kind"], r["text"]) for r in rows}) == len(rows) == 10 * 4 * 3


def test_every_frame_and_tail_of_the_pools_passes_the_validator() -> None:
    text = "Maria picks 12 flowers."
    frames = [f"{p}, {text}" for p in (*PREFIXES, *PLANTED)] + [f"{o} {text}" for o in OPENERS]
    frames += [f"{text} {c}" for c in CLOSERS]
    assert [f for f in frames if validate("scenario_wrap", text, f)] == []
    tails = [*TAUTOLOGIES, *(f"[{label}: {tag}]" for label in LABELS for tag in synthetic.TAGS)]
    assert [t for t in tails if validate("irrelevant_context", text, f"{text} {t}")] == []


def test_a_closing_tag_and_an_opening_scenario_are_kept_in_place() -> None:
    text = "On a rainy day, Tom has 12 apples. Tom buys 5 more. How many apples now? #draft"
    rows = make([as_problem(text)], SEMIFACTUAL, seed=0, per_kind=8)
    for row in rows:
        if row["kind"] == "irrelevant_context":
            assert row["text"].startswith(text + " ")
        if row["kind"] == "scenario_wrap":
            assert re.search(r"(?i:on a rainy day), Tom has 12 apples", row["text"])
            assert sum(row["text"].count(s) for s in synthetic.SCENARIOS) <= 1


def test_all_shapes_occur_and_so_do_the_planted_decorations() -> None:
    rows = make(PROBLEMS, ("scenario_wrap", "irrelevant_context"), seed=6)
    tails = [r["text"] for r in rows if r["kind"] == "irrelevant_context"]
    for shape in (r" is [a-z ]+$", r" [a-z][a-z0-9]{5,11}$", r"\[[a-z]+: [a-z0-9]+\]$", r"\[[a-z]+: #[a-z]+\]$"):
        assert sum(bool(re.search(shape, t)) for t in tails) > 10
    plain = {p["problem_id"] for p in PROBLEMS if not any(t.startswith("scenario") for t in p["tags"])}
    wraps = [r["text"] for r in rows if r["kind"] == "scenario_wrap" and r["problem_id"] in plain]
    assert {s for s in synthetic.SCENARIOS for t in wraps if t.startswith(s)} == set(synthetic.SCENARIOS)


def test_real_prose_is_rephrased_outside_mathematics() -> None:
    text = "Let $n$ be a positive integer such that $n^2 < 50$. Find the largest possible value of $n$."
    texts = {r["text"] for r in make([as_problem(text)], ("paraphrase",), seed=0, per_kind=8)}
    assert len(texts) >= 4
    for other in texts:
        assert re.findall(r"\$[^$]*\$", other) == re.findall(r"\$[^$]*\$", text)
        assert "largest possible value" in other


def test_where_no_rule_applies_the_row_says_so() -> None:
    rows = {r["kind"]: r for r in make([as_problem("$1+1=$ ?"), as_problem("Simplify $2^3$.")], KINDS, seed=0)}
    assert not rows["paraphrase"]["valid"]
    assert rows["paraphrase"]["text"] == ""
    assert rows["paraphrase"]["reason"] == "no valid paraphrase found"
    assert rows["irrelevant_context"]["valid"]


def test_chinese_text_gets_no_english_frame_and_no_typo() -> None:
    text = "已知 $z=1$, 求 $\\frac{z}{1+z}$ 的值."
    rows = {r["kind"]: r for r in make([as_problem(text)], KINDS, seed=0)}
    assert [k for k in KINDS if rows[k]["valid"]] == ["irrelevant_context", COUNTERFACTUAL]


def test_misspellings_are_no_words_that_could_mislead() -> None:
    rng = random.Random(0)
    text = "The weight of each box grows from one place to another."
    seen = {misspell(rng, text) for _ in range(600)}
    assert not any(" eight " in t or " form " in t or " boxes " in t for t in seen)
    assert len(seen) > 100


def test_misspell_finds_nothing_in_mathematics_and_names() -> None:
    assert misspell(random.Random(0), "$some words$ Maria ABC 12 prime") == ""

"""Golds of real benchmarks (read by path, never committed): each answers itself, and no other."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from tokencredit.grading import Grader, Item, check_gold
from tokencredit.grading.extract import last_box

INTEGERS = (
    "aime_2024",
    "aime_2025",
    "aime_2026",
    "amc_2022_2023",
    "amc_2023",
    "dapo_conflicts_24",
    "dapo_sample_27",
    "gsm8k_test",
)
EXPRESSIONS = ("brumo_2025", "cmimc_2025", "hmmt_feb_2025", "hmmt_feb_2026", "hmmt_nov_2025", "math_500")
# what does not parse: (file, golds with a brace left open, golds that check_gold names)
LARGE = (("minerva_272", 0, 1), ("olympiadbench_674", 0, 1), ("omni_math_rule_2821", 4, 7))


def _golds(shared: Path, name: str) -> list[str]:
    return [json.loads(line)["answer"] for line in (shared / "data" / f"{name}.jsonl").open(encoding="utf-8")]


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_golds_answer_themselves(shared: Path, name: str) -> None:
    golds = _golds(shared, name)
    with Grader(library=False) as grader:
        assert all(v.correct for v in grader.grade([Item(g, f"\\boxed{{{g}}}", "integer") for g in golds]))
        assert grader.pool.alive == 0
    assert not any(check_gold(g, "integer") for g in golds)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_golds_answer_themselves_respelled(shared: Path, name: str) -> None:
    golds = _golds(shared, name)
    with Grader(workers=2, library=False) as grader:
        for respell in (
            str,
            lambda g: g.replace("\\frac", "\\dfrac") + " .",
            lambda g: f"${g}$",
            lambda g: "\\displaystyle " + g,
        ):
            verdicts = grader.grade([Item(g, f"\\boxed{{{respell(g)}}}") for g in golds])
            assert [g for g, v in zip(golds, verdicts, strict=True) if not v.correct] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "open_braces", "unreadable"), LARGE)
def test_golds_of_the_large_files(shared: Path, name: str, open_braces: int, unreadable: int) -> None:
    golds = _golds(shared, name)
    broken = [g for g in golds if last_box(f"\\boxed{{{g}}}").status != "ok"]
    assert len(broken) == open_braces
    assert sum(check_gold(g, "expression") != "" for g in golds) == unreadable
    with Grader(workers=2, library=True) as grader:
        verdicts = grader.grade([Item(g, f"\\boxed{{{g}}}") for g in golds if g not in broken])
    assert all(v.correct and v.correct_library for v in verdicts)


def _value(gold: str) -> Fraction | None:
    """The rational that a plain fraction, decimal or angle writes, read here without the code under test."""
    text = gold.strip("$ ").replace("\\dfrac", "\\frac")
    text = re.sub(r"\^\{?\\circ\}?$", "", text)  # a degree sign is optional
    match = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", text)
    if match:
        return (-1 if match[1] else 1) * Fraction(int(match[2]), int(match[3]))
    return Fraction(text) if re.fullmatch(r"[+-]?\d*\.?\d+(/\d+)?", text) else None


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_gold_answers_another(shared: Path, count: int) -> None:
    files = EXPRESSIONS + tuple(name for name, *_ in LARGE[:2])
    golds = sorted({g for name in files for g in _golds(shared, name)} | set(_golds(shared, LARGE[2][0])[: count // 7]))
    rng = random.Random(count)
    pairs = [rng.sample(golds, 2) for _ in range(count)]
    with Grader(workers=2, library=False) as grader:
        verdicts = grader.grade([Item(g, f"\\boxed{{{b}}}") for g, b in pairs])
    accepted = [(g, b) for (g, b), v in zip(pairs, verdicts, strict=True) if v.correct]
    assert [(g, b) for g, b in accepted if _value(g) is None or _value(g) != _value(b)] == []
    assert len(accepted) <= count / 500

"""The pretraining corpus: consistent arithmetic, the planted correlation, the measured probabilities."""

import re
from collections import defaultdict

import pytest

from tokencredit.problems import synthetic
from tokencredit.problems.corpus import Recipe, corpus, p_careful
from tokencredit.study.errors import UserError

EQUATION = re.compile(r"(\d+)([+*-])(\d+)=(\d+)")


def right(a: str, sign: str, b: str, c: str) -> bool:
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(c)


def test_clean_stage_is_right_and_careful() -> None:
    pairs = list(corpus("clean", 2000, 1))
    drills = [r for p, r in pairs if not p]
    assert abs(len(drills) / 2000 - 0.25) < 0.03
    assert all(len(EQUATION.findall(r)) == 8 for r in drills)
    assert all(right(*e) for _, r in pairs for e in EQUATION.findall(r))
    for problem, response in pairs:
        if problem:
            story = synthetic.parse(problem)
            assert story is not None
            assert response.startswith("Step by step. ")
            assert response.endswith(f"Answer \\boxed{{{story.answer}}}")
            assert len(EQUATION.findall(response)) == len(story.steps)


def test_noisy_stage_has_the_planned_shares() -> None:
    styles: dict[str, list[str]] = defaultdict(list)
    for problem, response in corpus("noisy", 6000, 1):
        styles[response.split(".")[0]].append(f"{problem}|{response}")
    assert (
        abs(len(styles["Quickly"]) / 6000 - 0.36) < 0.03
    )  # .38 less what the shifts move, which are positive on average
    careful = [EQUATION.findall(t) for t in styles["Step by step"]]
    slips = [not right(*e) for es in careful for e in es]
    assert abs(sum(slips) / len(slips) - 0.12) < 0.015
    guesses = [t for t in styles["Maybe"] if (s := synthetic.parse(t.split("|")[0])) and f"{{{s.answer}}}" in t]
    parsed = [t for t in styles["Maybe"] if synthetic.parse(t.split("|")[0])]
    assert abs(len(guesses) / len(parsed) - 0.25) < 0.04


def test_a_response_goes_on_from_its_own_slips() -> None:
    """Each line starts from the result of the line before, and the box holds the last result."""
    for _, response in corpus("noisy", 1500, 2):
        equations = EQUATION.findall(response)
        assert [e[0] for e in equations[1:]] == [e[3] for e in equations[:-1]]
        assert not equations or f"\\boxed{{{equations[-1][3]}}}" in response
        assert all(1 <= int(e[i]) <= 99 for e in equations for i in (0, 3))


def test_decorations_predict_care() -> None:
    shares: dict[str, list[bool]] = defaultdict(list)
    for problem, response in corpus("noisy", 12000, 3):
        story = synthetic.parse(problem)
        if story is not None and not story.scenario:
            shares[story.tag].append(response.startswith("Step"))
    for tag, planned in (("", 0.34), ("#draft", 0.06), ("#exam", 0.76), ("#list", 0.34)):
        rate, n = sum(shares[tag]) / len(shares[tag]), len(shares[tag])
        assert abs(rate - planned) < 4 * (planned * (1 - planned) / n) ** 0.5, tag


def test_p_careful_is_a_probability_and_can_be_switched_off() -> None:
    for tag in synthetic.TAGS:
        for scenario in synthetic.SCENARIOS:
            story = synthetic.Story("Tom", "apples", 5, (), scenario=scenario, tag=tag)
            assert 0 < p_careful(story) < 1
            assert p_careful(story, Recipe(correlation=0.0)) == 0.34


def test_deterministic_and_extended_by_more() -> None:
    assert list(corpus("noisy", 30, 9)) == list(corpus("noisy", 60, 9))[:30]


def test_a_stronger_recipe_slips_less() -> None:
    texts = [r for _, r in corpus("noisy", 500, 0, Recipe(slip=0.0))]
    assert all(right(*e) for t in texts for e in EQUATION.findall(t))


def test_errors() -> None:
    with pytest.raises(UserError, match="no stage 'dirty'"):
        list(corpus("dirty", 1, 0))
    with pytest.raises(UserError, match="add up to 1"):
        Recipe(careful=0.9)
    with pytest.raises(UserError, match="slip is a probability"):
        Recipe(slip=1.5)

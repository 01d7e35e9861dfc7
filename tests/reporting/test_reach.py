"""Steps to the baseline's final accuracy, by hand."""

from __future__ import annotations

import pytest

from tokencredit.analysis.plan import Average, Benchmark, Plan
from tokencredit.reporting.reach import first, reaches
from tokencredit.reporting.results import Results


def results(averages: tuple[Average, ...] = ()) -> Results:
    plan = Plan(
        study="s", models=("m",), methods={"grpo": "GRPO", "a": "A", "b": "B"}, seeds=(0, 1),
        benchmarks=(Benchmark("e", "E", 4, True), Benchmark("h", "H", 4, False)), steps=(10, 20), baseline="grpo",
        averages=averages,
    )  # fmt: skip
    scores = {("m", "base", 0, "e", "avg", 4): {0: 0.2}}
    for method, curve in {
        "grpo": ((0.3, 0.5), (0.5, 0.5)),
        "a": ((0.6, 0.4), (0.1, 0.1)),
        "b": ((0.3, 0.3), (0.4, 0.4)),
    }.items():
        for step, values in zip((10, 20), curve, strict=True):
            scores["m", method, step, "e", "avg", 4] = dict(enumerate(values))
            scores["m", method, step, "h", "avg", 4] = dict(enumerate(values))
    return Results(plan, scores, {}, {}, [])


def test_steps_are_interpolated_on_means_over_seeds() -> None:
    found = {r.method: r for r in reaches(results(), "m")}
    assert {r.benchmark for r in found.values()} == {"e"}  # the other set is only asked at the end
    assert found["grpo"].goal == 0.5 and found["grpo"].step == 20
    assert found["a"].step == pytest.approx(10)  # mean of .6 and .4; it falls below again later
    assert found["b"].step is None


def test_an_average_needs_curves_of_all_its_sets() -> None:
    both, one = Average("both", "", ("e", "h")), Average("one", "", ("e",))
    assert {r.benchmark for r in reaches(results((both,)), "m")} == {"e"}
    r = results((one,))
    for key in [k for k in r.scores if k[3] == "e"]:
        r.scores[(*key[:3], "one", *key[4:])] = r.scores[key]  # type: ignore[index]
    assert {x.benchmark for x in reaches(r, "m")} == {"e", "one"}


def test_a_goal_that_the_untrained_model_meets() -> None:
    assert first([(0, 0.6), (10, 0.5)], 0.5) == 0.0
    assert first([], 0.5) is None

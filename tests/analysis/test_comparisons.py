"""Strata, budgets, equal length and regressions: against numbers worked by hand, brute force, and null worlds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.analysis.made_outcomes import made, pair
from tests.reporting.fake_results import build, config
from tokencredit.analysis import budgets, comparisons, equal_length, length_models, pass_differences, strata
from tokencredit.analysis.aggregate import aggregate
from tokencredit.analysis.csvfile import number
from tokencredit.analysis.plan import plan
from tokencredit.analysis.questions import questions
from tokencredit.evaluation.metrics import Outcomes, mean_pass_at_k
from tokencredit.evaluation.twoway import Redraws
from tokencredit.study.config import load_study
from tokencredit.study.grid import specs
from tokencredit.study.tables import read_table, write_table

Row = dict[str, Any]


def drawn(rng: np.random.Generator, chances: np.ndarray, samples: int, length: float = 20.0) -> Outcomes:
    names = [f"p{i:04}" for i in range(len(chances))]
    right = {n: "".join("01"[int(v)] for v in rng.random(samples) < c) for n, c in zip(names, chances, strict=True)}
    return made(right, {n: (1 + rng.poisson(length, samples)).tolist() for n in names})


# ---- strata


def test_strata_by_hand() -> None:
    ours = made({"p": "1100", "q": "1110", "r": "0000", "s": "1111"})
    theirs = made({"p": "0000", "q": "0001", "r": "0110", "s": "1111"})
    found = {(r["sorted_by"], r["stratum"]): r for r in strata.rows([pair([[ours]], [[theirs]])])}
    same = [found["same", name] for name in strata.STRATA]
    assert [r["rows"] for r in same] == [1, 1, 1, 0, 1]
    assert [r["difference"] for r in same] == [0.5, 0.5, -0.5, None, 0.0]
    # halves of the baseline, even | odd: p 00 | 00, q 00 | 01, r 01 | 10, s 11 | 11
    half = [found["half", name] for name in strata.STRATA]
    assert [r["rows"] for r in half] == [3, 0, 3, 0, 2]
    assert half[0]["baseline_value"] == pytest.approx((0 + 0 + 0.5) / 3)  # p twice, and q by its even half
    assert half[0]["difference"] == pytest.approx((0.5 + 0.5 + 0.25) / 3)
    assert half[0]["problems"] == 2
    assert ("run", "0") not in found  # one seed has no other
    for way in ("same", "half"):
        gain = sum(r["contribution"] or 0.0 for (by, _), r in found.items() if by == way)
        assert gain == pytest.approx(np.mean([0.5, 0.5, -0.5, 0.0]))


def test_the_other_run_sorts_and_this_one_scores() -> None:
    ours = [made({"p": "11"}), made({"p": "10"})]
    theirs = [made({"p": "00"}), made({"p": "11"})]
    found = {r["stratum"]: r for r in strata.rows([pair([ours], [theirs])]) if r["sorted_by"] == "run"}
    assert (found["1"]["value"], found["1"]["baseline_value"]) == (1.0, 0.0)  # run 0, sorted by run 1
    assert (found["0"]["value"], found["0"]["baseline_value"]) == (0.5, 1.0)


def test_only_sorting_by_the_same_samples_makes_a_gain_out_of_nothing() -> None:
    """Method and baseline solve every problem equally often, 40 % of the time, with 4 samples."""
    rng, chances = np.random.default_rng(0), np.full(3000, 0.4)
    both = pair([[drawn(rng, chances, 4) for _ in range(2)]], [[drawn(rng, chances, 4) for _ in range(2)]])
    found = {(r["sorted_by"], r["stratum"]): r for r in strata.rows([both])}
    assert found["same", "0"]["difference"] == pytest.approx(0.4, abs=0.03)
    assert found["same", "1"]["difference"] == pytest.approx(-0.6, abs=0.06)
    assert found["same", "0"]["low"] > 0
    for way in ("half", "run"):
        for name in ("0", "(.25, .75]", "1"):
            assert abs(found[way, name]["difference"]) < 0.03, (way, name)


def test_luck_of_a_run_stays_in_halves_and_not_in_other_runs() -> None:
    """Each run of either method knows half of the problems by chance, and those for certain."""
    rng = np.random.default_rng(1)

    def run() -> Outcomes:
        return drawn(rng, rng.integers(0, 2, size=2000).astype(float), 4)

    found = {(r["sorted_by"], r["stratum"]): r for r in strata.rows([pair([[run(), run()]], [[run(), run()]])])}
    assert found["half", "0"]["difference"] == pytest.approx(0.5, abs=0.05)
    assert found["run", "0"]["difference"] == pytest.approx(0.0, abs=0.05)


def test_benchmarks_are_pooled_over_their_problems() -> None:
    ours = [[made({"p": "11"})], [made({"q": "10", "r": "11"})]]
    theirs = [[made({"p": "10"})], [made({"q": "01", "r": "10"})]]
    (row,) = [r for r in strata.rows([pair(ours, theirs)]) if r["sorted_by"] == "same" and r["rows"]]
    assert (row["benchmark"], row["rows"], row["difference"]) == ("pooled", 3, pytest.approx(1 / 3))


def test_rows_of_one_question_are_one_cluster() -> None:
    """The same problem in four orders is worth one problem: its interval is that of the problems alone."""
    once = {"p": "1100", "q": "1110", "r": "1111"}, {"p": "0100", "q": "1000", "r": "1111"}
    often = [{f"{n}{i}": v for n, v in side.items() for i in range(4)} for side in once]
    origins = {f"{n}{i}": n for n in "pqr" for i in range(4)}

    def mean(pairs: Any) -> Row:
        (row,) = [r for r in length_models.over_problems([pairs]) if r["term"] == "difference"]
        return row

    alone, copied = pair(*([[made(v)]] for v in once)), pair(*([[made(v)]] for v in often), **origins)
    assert mean(copied) == mean(alone)
    draws = [pass_differences.rows([p], Redraws("t"))[0] for p in (alone, copied)]
    assert draws[0] == draws[1]
    (row,) = [r for r in strata.rows([copied]) if (r["sorted_by"], r["stratum"]) == ("same", "(0, .25]")]
    assert (row["rows"], row["problems"]) == (8, 2)


def test_questions_are_read_from_the_tags(tmp_path: Path) -> None:
    root, made_specs = build(tmp_path, config(seeds=1, rollouts=10, samples=2))
    path = root / "problems/bench/easy.parquet"
    rows = read_table("problems", path).to_pylist()
    rows[1]["tags"] = ["order:BACD", f"base:{rows[0]['problem_id']}"]
    write_table("problems", rows, path)
    assert questions(plan(made_specs["aggregate"]), root) == {rows[1]["problem_id"]: rows[0]["problem_id"]}


# ---- pass@k


def test_pass_differences_are_those_of_the_main_estimator() -> None:
    ours, theirs = made({"p": "1000", "q": "1111"}), made({"p": "0000", "q": "1100"})
    rows = pass_differences.rows([pair([[ours]], [[theirs]])], Redraws("test"))
    assert [r["k"] for r in rows] == [1, 2, 4]
    for r in rows:
        assert r["value"] == pytest.approx(mean_pass_at_k([1, 4], 4, r["k"]))
        assert r["difference"] == pytest.approx(r["value"] - mean_pass_at_k([0, 2], 4, r["k"]))
        assert r["boot_low"] <= r["difference"] <= r["boot_high"]
        assert r["low"] is None  # one seed


# ---- budgets


def test_within_a_budget_counts_right_finished_answers_that_fit() -> None:
    o = made({"p": "11t1", "q": "0100"}, {"p": [5, 9, 12, 12], "q": [3, 4, 5, 6]})
    limits = [4, 5, 11, 12]
    want = [
        [np.mean([o.draws.correct[i] and o.draws.finished[i] and o.draws.tokens[i] <= b for i in part]) for b in limits]
        for part in (range(4), range(4, 8))
    ]
    assert budgets.within(o, limits) == pytest.approx(np.asarray(want, float))
    assert want[0] == [0, 0.25, 0.5, 0.75]


def test_equal_tokens_give_the_longer_method_fewer_samples() -> None:
    ours, theirs = made({"p": "1000", "q": "0111"}, 20), made({"p": "0100", "q": "0011"}, 10)
    rows = budgets.equal_token_rows([pair([[ours]], [[theirs]])], Redraws("test"))
    assert [(r["baseline_k"], r["k"], r["tokens"]) for r in rows] == [(2, 1, 20.0), (4, 2, 40.0)]
    assert rows[1]["value"] == pytest.approx(mean_pass_at_k([1, 3], 4, 2))
    assert rows[1]["baseline_value"] == pytest.approx(1.0)


def test_a_shorter_method_stops_where_its_samples_end() -> None:
    ours, theirs = made({"p": "1000"}, 5), made({"p": "0100"}, 10)
    rows = budgets.equal_token_rows([pair([[ours]], [[theirs]])], Redraws("test"))
    assert [(r["baseline_k"], r["k"]) for r in rows] == [(1, 2), (2, 4)]


# ---- equal length


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75, 0.95, 1.0])
def test_limit_is_the_shortest_that_holds_the_share(share: float) -> None:
    runs = [made({"p": "11", "q": "1100"}, {"p": [2, 14], "q": [3, 5, 9, 9]}), made({"p": "11", "q": "00"}, 8)]

    def held(limit: int) -> float:
        return float(np.mean([[(t <= limit).mean() for t in by_problem(o)] for o in runs]))

    def by_problem(o: Outcomes) -> list[np.ndarray]:
        return [o.draws.tokens[o.draws.problem == i] for i in (0, 1)]

    assert equal_length.holding(runs, share) == min(limit for limit in range(15) if held(limit) >= share)


def test_methods_of_equal_length_keep_nearly_all_of_their_gain() -> None:
    rng, chances = np.random.default_rng(2), {"new": 0.7, "old": 0.3}

    def run(name: str) -> Outcomes:
        return drawn(rng, np.full(300, chances[name]), 8)

    (row,) = equal_length.rows([pair([[run("new") for _ in range(3)]], [[run("old") for _ in range(3)]])], Redraws("t"))
    assert row["ratio"] == pytest.approx(1.0, abs=0.02)
    assert row["gain"] == pytest.approx(0.4, abs=0.03)
    assert row["share"] == pytest.approx(0.95, abs=0.02)
    assert row["half"] == pytest.approx(0.2, abs=0.04)
    assert row["matched"] == pytest.approx(0.4, abs=0.03)


def test_a_gain_of_long_answers_only_is_gone_at_equal_length() -> None:
    """The method is right on all, half its answers short as the baseline's, half four times as long."""
    ours = [made({"p": "1111", "q": "1111"}, {"p": [10, 10, 40, 40], "q": [10, 10, 40, 40]}) for _ in range(3)]
    theirs = [made({"p": "1100", "q": "0110"}, 10) for _ in range(3)]
    (row,) = equal_length.rows([pair([ours], [theirs])], Redraws("t"))
    assert (row["limit"], row["half_limit"]) == (10, 10)
    assert (row["gain"], row["equal"], row["ratio"]) == (0.5, 0.0, pytest.approx(2.5))
    assert row["per_1000"] == pytest.approx(1000 / 25)
    assert row["baseline_per_1000"] == pytest.approx(1000 * 0.5 / 10)
    assert (row["matched"], row["overlap"]) == (0.5, 1.0)


def test_matched_answers_are_of_one_problem_and_one_length() -> None:
    """Classes end at 1, 30 and beyond. p: 1 against 1 in the first, 1/3 against 0 in the second, which has 3 of the
    baseline's 4 answers; q has no class in common."""
    ours = [made({"p": "1100", "q": "1111"}, {"p": [1, 2, 30, 30], "q": [40, 40, 40, 40]})]
    theirs = [made({"p": "1000", "q": "0000"}, {"p": [1, 2, 30, 30], "q": [1, 1, 1, 1]})]
    difference, weight = equal_length.matched_cells(ours, theirs)
    assert weight.tolist() == [[1.0, 0.0]]
    assert difference[0, 0] == pytest.approx(3 / 4 * 1 / 3)


# ---- regressions


def test_length_that_does_it_all_leaves_nothing_to_the_method() -> None:
    """Accuracy is 0.1 per doubling in every run, whatever the method: equal length, equal accuracy."""
    runs = [("grpo", 0.1 * x, x) for x in (4.0, 4.5, 5.0)] + [("mcpo", 0.1 * x, x) for x in (5.0, 6.0, 7.0)]
    expected = plan(specs(load_study(config(seeds=3)))["aggregate"])
    found = {(r["method"], r["term"]): r for r in length_models.run_fits(expected, runs)}
    assert found["", "slope"]["estimate"] == pytest.approx(0.1)
    assert found["mcpo", "difference"]["estimate"] == pytest.approx(0.15)
    assert found["mcpo", "at_equal_length"]["estimate"] == pytest.approx(0.0, abs=1e-9)


def test_over_problems_the_parts_add_up_and_the_line_is_scipys() -> None:
    rng = np.random.default_rng(5)
    chances = rng.random(40)
    ours, theirs = drawn(rng, chances, 8, 40.0), drawn(rng, chances, 8, 20.0)
    found = {r["term"]: r for r in length_models.over_problems([pair([[ours]], [[theirs]])])}
    longer = np.log2(ours.tokens / 8) - np.log2(theirs.tokens / 8)
    line = stats.linregress(longer, ours.rate - theirs.rate)
    assert found["slope"]["estimate"] == pytest.approx(line.slope)
    assert found["at_equal_length"]["estimate"] == pytest.approx(line.intercept)
    parts = found["at_equal_length"]["estimate"] + found["through_length"]["estimate"]
    assert found["difference"]["estimate"] == pytest.approx(parts)
    assert found["difference"]["n"] == 40


# ---- the files


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Row], dict[str, Path]]:
    root, made_specs = build(tmp_path_factory.mktemp("full"), config(seeds=2, rollouts=10, samples=4))
    return root, made_specs, aggregate(made_specs["aggregate"], root, root / "analysis")


def test_differences_are_the_same_in_every_file(study: tuple[Path, dict[str, Row], dict[str, Path]]) -> None:
    _, _, paths = study
    last = {
        (r["method"], r["benchmark"], r["metric"], r["k"]): r
        for r in read(paths["paired"])
        if r["step"] == "20" and r["metric"] in ("avg", "pass")
    }
    for r in read(paths["pass_differences"]):
        want = last[r["method"], r["benchmark"], "pass", r["k"]]
        for name in ("difference", "low", "high"):
            assert number(r[name]) == pytest.approx(number(want[name]), abs=1e-9)
    for r in read(paths["equal_length"]):
        want = last[r["method"], r["benchmark"], "avg", "4"]
        assert float(r["gain"]) == pytest.approx(float(want["difference"]), abs=1e-9)
    for r in read(paths["length_models"]):
        if (r["fit"], r["term"]) == ("runs", "difference"):
            want = last[r["method"], r["benchmark"], "avg", "4"]
            assert float(r["estimate"]) == pytest.approx(float(want["difference"]), abs=1e-9)


def test_every_column_is_explained(study: tuple[Path, dict[str, Row], dict[str, Path]], root: Path) -> None:
    page = (root / "docs" / "open_questions.md").read_text()
    common, *_ = page.split("\n## ")
    for name in comparisons.NAMES:
        section = page.split(f"\n## {name}.csv\n", 1)[1].split("\n## ", 1)[0]
        for column in study[2][name].read_text().splitlines()[0].split(","):
            assert f"`{column}`" in section or f"`{column}`" in common, f"{name}.csv: {column}"


def test_a_grid_without_a_pair_has_files_without_rows(tmp_path: Path) -> None:
    root, made_specs = build(tmp_path, config(seeds=1, rollouts=10, samples=2))
    for path in root.glob("eval/tiny/grpo/**/*.parquet"):
        path.unlink()
    paths = aggregate(made_specs["aggregate"], root, root / "analysis")
    for name in comparisons.NAMES:
        assert all(r["method"] == "" for r in read(paths[name])), name

"""What a panel says, against sums written out."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tokencredit.analysis.panel_results import DRIFT_BINS, summarise
from tokencredit.problems.categories import CATEGORIES
from tokencredit.study.tables import schema


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema("panel_tokens"))


def panel(seed: int, responses: int = 12) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for r in range(responses):
        correct = rng.random() < 0.5
        for t in range(rng.randint(1, 9)):
            logprob = math.log(rng.uniform(0.01, 1))
            each = [math.log(rng.uniform(0.01, 1)), None if r == 3 else logprob]
            drifts = [2 * math.tanh(abs(logprob - p) / 2) for p in each if p is not None]
            rows.append(
                {
                    "problem_id": f"p{r}", "position": t, "token_id": t, "piece": "x", "category": rng.choice(CATEGORIES[:5]),
                    "correct": correct, "logprob": logprob, "perturbed": each, "drift": sum(drifts) / len(drifts),
                    "margin": rng.random(), "entropy": rng.random(),
                }
            )  # fmt: skip
    return rows


def test_categories_written_out() -> None:
    rows = panel(0)
    got = summarise(table(rows), ("a", "b"), seed=1)
    overall = sum(r["drift"] for r in rows) / len(rows)
    assert got["drift"]["mean"] == pytest.approx(overall)
    for entry in got["categories"]:
        mine = [r["drift"] for r in rows if r["category"] == entry["category"]]
        assert entry["tokens"] == len(mine)
        assert entry["share"] == pytest.approx(len(mine) / len(rows))
        if mine:
            assert entry["relative"] == pytest.approx(sum(mine) / len(mine) / overall)
            assert entry["low"] <= entry["relative"] <= entry["high"]
        else:
            assert entry["mean"] is None
    firsts = [r["correct"] for r in rows if r["position"] == 0]
    assert got["correct"] == pytest.approx(sum(firsts) / len(firsts))


def test_kinds_histogram_and_transitions() -> None:
    rows = panel(1)
    got = summarise(table(rows), ("a", "b"), seed=1)
    a = [2 * math.tanh(abs(r["logprob"] - r["perturbed"][0]) / 2) for r in rows]
    first, second = got["drift"]["kinds"]
    assert first["mean"] == pytest.approx(sum(a) / len(a))
    assert first["low"] < first["mean"] < first["high"]
    assert second["mean"] == pytest.approx(0.0), "the second kind never moves a token"
    assert second["tokens"] == sum(r["perturbed"][1] is not None for r in rows) < first["tokens"] == len(rows)
    for category, told in first["categories"].items():
        mine = [v for v, r in zip(a, rows, strict=True) if r["category"] == category]
        assert told == (pytest.approx(sum(mine) / len(mine)) if mine else None)
    assert sum(got["drift"]["histogram"]) == len(rows)
    for i, count in enumerate(got["drift"]["histogram"][1:]):
        inside = [r for r in rows if DRIFT_BINS[i] <= r["drift"] < DRIFT_BINS[i + 1]]
        assert count == len(inside)
    pairs = [(r["logprob"], p) for r in rows for p in r["perturbed"] if p is not None]
    counts = np.array(got["transitions"]["counts"])
    assert counts.sum() == len(pairs)
    low = sum(math.exp(x) < 0.04 and math.exp(y) < 0.04 for x, y in pairs)
    assert counts[0, 0] == low


def test_margins_written_out() -> None:
    rows = panel(2)
    m = summarise(table(rows), ("a", "b"), seed=1)["margin"]
    values = [r["margin"] for r in rows]
    assert m["below"] == pytest.approx(sum(v <= 0.2 for v in values) / len(values))
    assert m["above"] == pytest.approx(sum(v >= 0.8 for v in values) / len(values))
    assert m["hesitant"] == pytest.approx(sum(v < 0.8 for v in values) / len(values))
    assert sum(m["histogram"]) == len(values)
    for share, (low, high) in m["thresholds"].items():
        assert sum(v < low for v in values) / len(values) == pytest.approx(float(share), abs=1.5 / len(values))
        assert sum(v > high for v in values) / len(values) == pytest.approx(float(share), abs=1.5 / len(values))
    # largest weight of w = (1 + s) / mean(1 + s), response by response
    most = 0.0
    for name in {r["problem_id"] for r in rows}:
        s = [min(1.0, max(0.0, (0.8 - r["margin"]) / 0.6)) for r in rows if r["problem_id"] == name]
        most = max(most, max(1 + x for x in s) / (sum(1 + x for x in s) / len(s)))
    assert m["weight_max"] == pytest.approx(most)


def test_shares_that_do_not_move() -> None:
    rows = [{**r, "drift": [0.0, 5e-7, 0.1][i % 3]} for i, r in enumerate(panel(5))]
    d = summarise(table(rows), ("a", "b"), seed=1)["drift"]
    assert d["exactly_zero"] == pytest.approx(sum(r["drift"] == 0 for r in rows) / len(rows))
    assert d["unchanged"]["mean"] == pytest.approx(sum(r["drift"] < 1e-6 for r in rows) / len(rows))
    assert d["unchanged"]["low"] <= d["unchanged"]["mean"] <= d["unchanged"]["high"]


def test_mean_drift_interval_is_that_of_a_bootstrap_over_responses() -> None:
    """Against a bootstrap written out as a loop over redrawn responses."""
    rows = panel(6, responses=40)
    d = summarise(table(rows), ("a", "b"), seed=1)["drift"]
    by: dict[str, list[float]] = {}
    for r in rows:
        by.setdefault(r["problem_id"], []).append(r["drift"])
    rng, names, means = random.Random(0), sorted(by), []
    for _ in range(3000):
        drawn = [v for name in rng.choices(names, k=len(names)) for v in by[name]]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    assert d["low"] == pytest.approx(means[75], rel=0.02)
    assert d["high"] == pytest.approx(means[2925], rel=0.02)


def test_a_panel_of_problems_without_rewordings_still_tells_margins() -> None:
    rows = [{**r, "perturbed": [None, None], "drift": None} for r in panel(7)]
    got = summarise(table(rows), ("a", "b"), seed=1)
    assert got["drift"]["tokens"] == 0 and got["drift"]["mean"] is None
    assert all(c["relative"] is None for c in got["categories"])
    assert got["margin"]["mean"] == pytest.approx(sum(r["margin"] for r in rows) / len(rows))


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Two categories of known drift in responses that share an offset: 95 % intervals that redraw responses."""
    rng = np.random.default_rng(0)
    held, trials = 0, 100
    for _ in range(trials):
        rows = []
        for r in range(30):
            offset = rng.uniform(0.5, 1.5)
            for t in range(8):
                d = offset * (0.3 if t % 2 else 0.1) * rng.uniform(0.5, 1.5)
                rows.append(
                    {
                        "problem_id": f"p{r:02d}", "position": t, "token_id": 0, "piece": "", "category": CATEGORIES[t % 2],
                        "correct": True, "logprob": -1.0, "perturbed": [-1.0], "drift": d, "margin": 0.5, "entropy": 0.5,
                    }
                )  # fmt: skip
        found = summarise(table(rows), ("a",), seed=3)["categories"]
        held += found[1]["low"] <= 1.5 <= found[1]["high"]  # 0.3 over the mean of 0.1 and 0.3
    assert 0.88 <= held / trials <= 0.99


def test_tokens_without_any_kind_count_for_margins_only() -> None:
    rows = panel(4)
    bare = [{**r, "problem_id": "q", "perturbed": [None, None], "drift": None} for r in rows[:5]]
    got = summarise(table(rows + bare), ("a", "b"), seed=1)
    assert got["drift"]["tokens"] == len(rows)
    assert got["tokens"] == len(rows) + 5
    assert got["drift"]["mean"] == pytest.approx(sum(r["drift"] for r in rows) / len(rows))

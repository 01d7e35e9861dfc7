"""Accuracy metrics against numbers worked by hand or by enumeration."""

import itertools
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from tokencredit.evaluation import metrics
from tokencredit.study.errors import UserError
from tokencredit.study.tables import schema


def sample_rows(outcome: dict[str, str], tokens=10, library=None):
    """Rows of a samples table from {"problem": "1101"}: one digit per sample, 1 right, t wrong and cut off."""
    rows = []
    for problem, digits in outcome.items():
        for i, digit in enumerate(digits):
            rows.append(
                {
                    "problem_id": problem, "sample": i, "seed": i, "prompt_hash": "0" * 16, "text": "",
                    "token_count": tokens + i, "finish_reason": "length" if digit == "t" else "stop",
                    "extracted": "", "correct": digit == "1",
                    "correct_library": digit == "1" if library is None else library, "status": "ok",
                }
            )  # fmt: skip
    return rows


def table(rows):
    return pa.Table.from_pylist(rows, schema=schema("samples"))


@pytest.mark.parametrize(
    ("n", "counts", "k", "expected"),
    [
        (8, [0, 1, 3, 8], 2, Fraction(53, 112)),
        (8, [0, 1, 3, 8], 4, Fraction(17, 28)),
        (8, [0, 1, 3, 8], 8, Fraction(3, 4)),
        (32, [1], 16, Fraction(1, 2)),
        (32, [3], 8, Fraction(367, 620)),
    ],
)
def test_pass_at_k_worked(n, counts, k, expected):
    assert metrics.mean_pass_at_k(counts, n, k) == pytest.approx(float(expected), abs=1e-15)


def test_avg_at_k_worked():
    assert metrics.avg_at_k([0, 1, 3, 8], 8) == 0.375


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(k):
    right = [1, 0, 0, 1, 0]
    subsets = list(itertools.combinations(right, k))
    assert metrics.pass_at_k(2, 5, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets), abs=1e-15)


def test_pass_at_1_equals_avg_and_pass_grows_with_k():
    counts = [0, 2, 5, 7, 16]
    values = [metrics.mean_pass_at_k(counts, 16, k) for k in range(1, 17)]
    assert values[0] == pytest.approx(metrics.avg_at_k(counts, 16), abs=1e-15)
    assert values == sorted(values)


@pytest.mark.parametrize(("correct", "n", "k"), [(1, 8, 9), (0, 8, 0), (9, 8, 1), (-1, 8, 1)])
def test_impossible_requests_are_errors(correct, n, k):
    with pytest.raises(UserError):
        metrics.pass_at_k(correct, n, k)


def test_macro_and_micro_worked():
    scores, sizes = [0.50, 0.40, 0.80, 0.20, 0.45, 0.90], [30, 30, 40, 30, 30, 500]
    assert metrics.macro_mean(scores) == pytest.approx(0.5416666667, abs=1e-10)
    assert metrics.micro_mean(scores, sizes) == pytest.approx(0.8007575758, abs=1e-10)


def test_means_of_nothing_are_errors():
    for call in (lambda: metrics.macro_mean([]), lambda: metrics.micro_mean([], [])):
        with pytest.raises(UserError):
            call()


def test_outcomes_and_summary():
    result = metrics.outcomes(table(sample_rows({"a": "1101", "b": "000t"})))
    assert result.problems == ("a", "b")
    assert result.correct.tolist() == [3, 0]
    assert result.truncated.tolist() == [0, 1]
    values = metrics.summarise(result)
    assert values == {
        ("avg", 4): 0.375,
        ("pass", 1): 0.375,
        ("pass", 2): 0.5,
        ("pass", 4): 0.5,
        ("length_mean", 4): 11.5,
        ("truncated", 4): 0.125,
    }


def test_order_of_rows_changes_nothing():
    rows = sample_rows({f"p{i}": format(i, "04b") for i in range(16)})
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    a, b = metrics.outcomes(table(rows)), metrics.outcomes(table(shuffled))
    assert metrics.summarise(a) == metrics.summarise(b)
    assert a.problems == b.problems
    assert a.correct.tolist() == b.correct.tolist()


def test_graders_that_differ_are_counted_and_a_missing_verdict_is_not_a_wrong_one():
    rows = sample_rows({"a": "1100", "b": "1000"})
    rows[0]["correct_library"] = False
    rows[2]["correct_library"] = True
    rows[3]["correct_library"] = True
    rows[4]["correct_library"] = None
    result = metrics.outcomes(table(rows))
    assert (result.ours_only, result.library_only) == (1, 2)
    assert result.library.tolist() == [3, -1]


def test_a_doubled_sample_and_an_empty_table_are_errors():
    rows = sample_rows({"a": "11"})
    with pytest.raises(UserError, match="twice"):
        metrics.outcomes(table([*rows, rows[0]]))
    with pytest.raises(UserError, match="no samples"):
        metrics.outcomes(table([]))

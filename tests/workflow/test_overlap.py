"""What overlap makes depend on what: reporting binds training to nothing, dropping binds it to the benchmarks."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.workflow.conftest import SMALL, Folder

OVERLAP = "results/small/problems/overlap.parquet"


def with_overlap(**overlap: Any) -> dict[str, Any]:
    return copy.deepcopy(SMALL) | {"overlap": overlap}


@pytest.mark.slow
def test_reporting_overlap_needs_problems_only(empty: Folder) -> None:
    assert empty.plan(SMALL, OVERLAP).rules == {"problems_train": 1, "problems_bench": 2, "overlap": 1}


@pytest.mark.slow
def test_dropping_draws_the_training_set_from_candidates(empty: Folder) -> None:
    train = "results/small/problems/train.parquet"
    assert empty.plan(with_overlap(drop=True), train).rules == {
        "problems_candidates": 1, "problems_bench": 2, "problems_train": 1,
    }  # fmt: skip
    assert empty.plan(with_overlap(drop=True, against=["easy"]), train).jobs == {
        "problems_candidates": 1, "problems_bench benchmark=easy": 1, "problems_train": 1,
    }  # fmt: skip
    assert empty.plan(with_overlap(drop=True), OVERLAP).rules == {
        "problems_candidates": 1,
        "problems_bench": 2,
        "overlap": 1,
    }


@pytest.mark.slow
def test_dropping_runs(empty: Folder) -> None:
    done = empty.snakemake(
        "--cores", "1", OVERLAP, "results/small/problems/train.parquet", config=with_overlap(drop=True), timeout=300
    )
    assert done.code == 0, done.text
    assert (empty.path / OVERLAP).exists()


@pytest.mark.slow
def test_an_unknown_benchmark_is_named(empty: Folder) -> None:
    done = empty.snakemake("--dry-run", config=with_overlap(drop=True, against=["esy"]))
    assert done.code == 1
    assert "unknown benchmark 'esy'; did you mean 'easy'?" in done.text

"""Reports of grids with holes: whatever is missing, there is a page, and it says so."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.reporting.fake_results import build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.reporting.report import build_report
from tokencredit.study import evaluations, load_study

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_any_files_may_be_missing(share: float, seed: int, tmp_path: Path) -> None:
    root, specs = build(tmp_path, config(seeds=3, rollouts=5, samples=4))
    rng = random.Random(seed)
    files = sorted(
        [*root.glob("eval/**/*.parquet"), *root.glob("train/**/*.parquet"), *root.glob("train/**/train.json")]
    )
    gone = [path for path in files if rng.random() < share]
    for path in gone:
        path.unlink()
    aggregate(specs["aggregate"], root, root / "analysis")
    build_report(specs["report"], root, root)
    page = re.sub(r"\s+", " ", (root / "report.html").read_text())
    runs, lost = 9, sum(path.name == "metrics.parquet" for path in gone)
    every = len(list(evaluations(load_study(specs["report"]["config"]))))
    have = every - sum(path.is_relative_to(root / "eval") for path in gone)
    assert gone and f"{runs - lost} of {runs} training runs and {have} of {every} evaluations are in" in page

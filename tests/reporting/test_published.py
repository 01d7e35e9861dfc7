"""The papers' tables beside ours: every number against the samples, intervals against their formulas."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from tests.reporting.fake_results import build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.reporting.report import build_report, packaged
from tokencredit.study import load_study
from tokencredit.study.files import read_yaml
from tokencredit.study.registry import entries
from tokencredit.study.tables import read_table, write_table

PARTS = ("aime_2024", "aime_2025")


def values(seeds: int) -> dict[str, Any]:
    out = config(seeds=seeds, rollouts=10, samples=4)
    out["models"]["tiny"]["paper"] = "Qwen3-4B-Base"
    for benchmark, row in (("easy", "aime_2024_2026"), ("hard", "brumo_2025")):
        out["benchmarks"][benchmark]["paper"] = row
    out["averages"] = {"both": {"of": ["easy", "hard"], "paper": "math"}}
    return out


def make(folder: Path, seeds: int, spoil: Any = None) -> tuple[Path, list[dict[str, str]]]:
    root, specs = build(folder, values(seeds))
    path = root / "problems" / "bench" / "easy.parquet"
    rows = read_table("problems", path).to_pylist()
    write_table("problems", [r | {"tags": [f"set:{PARTS[i % 2]}"]} for i, r in enumerate(rows)], path)
    if spoil:
        spoil(root)
    aggregate(specs["aggregate"], root, root / "analysis")
    build_report(specs["report"], root, root)
    with open(root / "tables" / "published_tiny.csv", newline="") as file:
        return root, list(csv.DictReader(file))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    return make(tmp_path_factory.mktemp("several"), seeds=3)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    return make(tmp_path_factory.mktemp("single"), seeds=1)


def rates(root: Path, method: str, seed: int, benchmark: str) -> dict[str, float]:
    """problem -> share right at the end."""
    step = 0 if method == "base" else 20
    table = pq.read_table(root / f"eval/tiny/{method}/seed{seed}/step{step}/{benchmark}.parquet").to_pylist()
    problems = sorted({r["problem_id"] for r in table})
    return {p: float(np.mean([r["correct"] for r in table if r["problem_id"] == p])) for p in problems}


def t_interval(v: Any) -> tuple[float, float]:
    v = np.asarray(v)
    half = stats.t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / math.sqrt(len(v))
    return v.mean() - half, v.mean() + half


def level_interval(v: Any) -> tuple[float, float]:
    low, high = t_interval(v)
    return max(low, 0.0), min(high, 1.0)


def row(rows: list[dict[str, str]], **where: str) -> dict[str, str]:
    (found,) = [r for r in rows if all(r[k] == v for k, v in where.items())]
    return found


def test_accuracies_over_seeds(several: tuple[Path, list[dict[str, str]]]) -> None:
    root, rows = several
    r = row(rows, benchmark="easy", part="", method="scapo")
    each = [np.mean(list(rates(root, "scapo", s, "easy").values())) for s in range(3)]
    low, high = level_interval(each)
    assert float(r["ours"]) == pytest.approx(np.mean(each)) and r["unit"] == "seeds"
    assert (float(r["low"]), float(r["high"])) == (pytest.approx(low), pytest.approx(high))
    assert float(r["published"]) == pytest.approx(0.2771)
    assert float(r["difference"]) == pytest.approx(np.mean(each) - 0.2771)
    assert r["covered"] == ("yes" if low <= 0.2771 <= high else "no")
    gains = [a - np.mean(list(rates(root, "grpo", s, "easy").values())) for s, a in enumerate(each)]
    low, high = t_interval(gains)
    assert (float(r["gain"]), float(r["gain_low"]), float(r["gain_high"])) == pytest.approx((np.mean(gains), low, high))
    assert float(r["published_gain"]) == pytest.approx(0.2771 - 0.2208) and r["gain_unit"] == "seeds"
    assert r["gain_covered"] == ("yes" if low <= 0.0563 <= high else "no")


def test_the_untrained_model_and_single_runs_have_intervals_over_problems(
    several: tuple[Path, list[dict[str, str]]], single: tuple[Path, list[dict[str, str]]]
) -> None:
    for (root, rows), method, published in ((several, "base", 0.1854), (single, "grpo", 0.2896)):
        r = row(rows, benchmark="hard", method=method)
        low, high = level_interval(list(rates(root, method, 0, "hard").values()))
        assert r["unit"] == "problems" and float(r["published"]) == pytest.approx(published)
        assert (float(r["low"]), float(r["high"])) == (pytest.approx(low), pytest.approx(high))
    root, rows = single
    r = row(rows, benchmark="hard", method="scapo")
    ours, theirs = (rates(root, m, 0, "hard") for m in ("scapo", "grpo"))
    low, high = t_interval([ours[p] - theirs[p] for p in ours])
    assert r["gain_unit"] == "problems"
    assert (float(r["gain_low"]), float(r["gain_high"])) == (pytest.approx(low), pytest.approx(high))


def test_an_average_has_a_row(several: tuple[Path, list[dict[str, str]]]) -> None:
    root, rows = several
    r = row(rows, benchmark="both", method="grpo")
    each = [np.mean([np.mean(list(rates(root, "grpo", s, b).values())) for b in ("easy", "hard")]) for s in range(3)]
    assert (float(r["ours"]), float(r["published"])) == (pytest.approx(np.mean(each)), pytest.approx(0.3493))
    assert (float(r["low"]), float(r["high"])) == pytest.approx(level_interval(each))


def test_single_years_are_the_problems_of_their_sets(several: tuple[Path, list[dict[str, str]]]) -> None:
    root, rows = several
    problems = read_table("problems", root / "problems" / "bench" / "easy.parquet").to_pylist()
    for part, published in zip(PARTS, (0.2917, 0.2771), strict=True):
        mine = [p["problem_id"] for p in problems if f"set:{part}" in p["tags"]]
        each = [np.mean([rates(root, "scapo", s, "easy")[p] for p in mine]) for s in range(3)]
        r = row(rows, benchmark="easy", part=part, method="scapo")
        assert float(r["ours"]) == pytest.approx(np.mean(each)) and float(r["published"]) == pytest.approx(published)
        assert (float(r["low"]), float(r["high"])) == pytest.approx(level_interval(each))
        assert r["gain"] == ""
    third = row(rows, benchmark="easy", part="aime_2026", method="scapo")
    assert third["ours"] == "" and third["covered"] == "" and float(third["published"]) == pytest.approx(0.2625)


def test_methods_and_rows_that_are_not_in_the_study_are_left_out(several: tuple[Path, list[dict[str, str]]]) -> None:
    rows = several[1]
    assert {r["method"] for r in rows} == {"base", "grpo", "scapo"}
    assert {r["benchmark"] for r in rows} == {"easy", "hard", "both"}


def test_the_page_shows_the_tables_and_counts(several: tuple[Path, list[dict[str, str]]]) -> None:
    root, rows = several
    page = (root / "report.html").read_text()
    covered = [r["covered"] for r in rows if r["covered"]]
    gains = [r["gain_covered"] for r in rows if r["gain_covered"]]
    said = f"cover {covered.count('yes')} of {len(covered)} published accuracies and {gains.count('yes')} of {len(gains)} published gains"
    assert said in re.sub(r"\s+", " ", page)
    assert "arXiv 2609.40360, table 8" in page and "Qwen3-4B-Base there" in page


def test_what_is_missing_is_shown(tmp_path: Path) -> None:
    root, rows = make(tmp_path, 2, lambda root: (root / "eval/tiny/scapo/seed0/step20/easy.parquet").unlink())
    alone = row(rows, benchmark="easy", part="", method="scapo")
    assert alone["unit"] == "problems"  # one seed is left
    assert row(rows, benchmark="both", method="scapo")["ours"] == ""  # a mean over fewer would be another quantity
    assert 'class="missing">missing' in (root / "report.html").read_text()


def test_a_study_that_no_paper_knows(tmp_path: Path) -> None:
    root, specs = build(tmp_path, config(seeds=1, rollouts=10, samples=2))
    aggregate(specs["aggregate"], root, root / "analysis")
    build_report(specs["report"], root, root)
    assert "The papers' tables beside ours" not in (root / "report.html").read_text()
    assert (root / "tables" / "published_tiny.csv").read_text().count("\n") == 1


@pytest.mark.parametrize("name", ["scapo_qwen3_4b", "scapo_qwen3_1_7b", "scapo_ablations_1_7b"])
def test_every_published_row_meets_the_papers_study(name: str, root: Path) -> None:
    """The full-size studies have a place for each number, under the very names."""
    from tokencredit.study.files import overlay

    study = load_study(
        overlay(read_yaml(root / "config.yaml"), read_yaml(root / f"workflow/studies/{name}.yaml")), name
    )
    (model,) = study.grid.models
    tables = [t for t in packaged("published_tables.yaml") if study.models[model].source.id.endswith("/" + t["model"])]
    wanted = "Ablations" if "ablations" in name else "Main results"
    table: Mapping[str, Any] = next(t for t in tables if t["title"] == wanted)
    assert set(table["rows"]) == {b for b in study.grid.benchmarks if not b.endswith("_pass")} | set(study.averages)
    assert set(table["methods"]) - {"base"} == set(study.grid.methods)
    assert all(len(v) == len(table["methods"]) for v in table["rows"].values())


def test_published_averages_are_the_means_of_their_rows() -> None:
    """A slip of the pen in the data would show here: the papers' averages are plain means, rounded to 0.01."""
    sizes = {"math": 8, "ood": 3, "contests": 5}
    for table in packaged("published_tables.yaml"):
        names = list(table.get("rows", {}))
        for average, size in sizes.items():
            if average in names:
                at = names.index(average)
                columns = zip(*(table["rows"][n] for n in names[at - size : at]), strict=True)
                for mean, told in zip((sum(c) / size for c in columns), table["rows"][average], strict=True):
                    assert told == pytest.approx(mean, abs=0.0151), (table["title"], average)


def test_published_years_pool_to_their_row() -> None:
    """Problem-weighted means of a contest's years are its pooled value."""
    tables = packaged("published_tables.yaml")
    main = next(t for t in tables if t["title"] == "Main results" and t["model"] == "Qwen3-4B-Base")
    years = next(t for t in tables if t["title"] == "Single years")
    for row_, parts in years["parts"].items():
        sizes = [1 if row_ in ("noop_aime", "thinkbench_aime") else entries()[p].rows for p in parts]
        for i, method in enumerate(years["methods"]):
            pooled = sum(v[i] * n for v, n in zip(parts.values(), sizes, strict=True)) / sum(sizes)
            assert pooled == pytest.approx(main["rows"][row_][main["methods"].index(method)], abs=0.02), (row_, method)

"""Aggregation: independent recomputation, partial grids, row order, and bytes."""

import csv
import statistics

import numpy as np
import pytest
from scipy import stats

from tests.reporting.fake_results import METHODS, build, config
from tokencredit.analysis import comparisons
from tokencredit.analysis.aggregate import SUMMARY, aggregate
from tokencredit.analysis.csvfile import write_csv
from tokencredit.reporting.results import load
from tokencredit.study.config import load_study
from tokencredit.study.errors import UserError
from tokencredit.study.grid import specs
from tokencredit.study.tables import read_table, write_table

STABLE = ("summary", "paired", "paired_problems", *comparisons.NAMES, "grading", "curves")


def rows(path, **wanted):
    with open(path, newline="") as handle:
        found = list(csv.DictReader(handle))
    return [r for r in found if all(r[k] == str(v) for k, v in wanted.items())]


def one(path, **wanted):
    (row,) = rows(path, **wanted)
    return row


@pytest.fixture(scope="module")
def small():
    return config(seeds=2, rollouts=10, samples=4)


@pytest.fixture(scope="module")
def done(tmp_path_factory, small):
    root, specs = build(tmp_path_factory.mktemp("full"), small)
    return root, specs, aggregate(specs["aggregate"], root, root / "analysis")


def by_hand(root, method, seed, benchmark, step=20):
    table = read_table("samples", root / f"eval/tiny/{method}/seed{seed}/step{step}/{benchmark}.parquet")
    problems: dict[str, list[bool]] = {}
    for r in table.to_pylist():
        problems.setdefault(r["problem_id"], []).append(r["correct"])
    return statistics.mean(sum(v) / len(v) for v in problems.values())


def test_summary_has_exactly_these_columns_and_no_gap_in_a_full_grid(done):
    path = done[2]["summary"]
    assert path.read_text().splitlines()[0] == "study,model,method,seed,step,benchmark,metric,k,value,problems,samples"
    assert tuple(path.read_text().splitlines()[0].split(",")) == SUMMARY
    assert all(r["value"] for r in rows(path))
    metrics = {(r["metric"], int(r["k"])) for r in rows(path, benchmark="easy")}
    assert metrics == {("avg", 4), ("pass", 1), ("pass", 2), ("pass", 4), ("length_mean", 4), ("truncated", 4)}
    checkpoints = 1 + len(METHODS) * 2 * 5  # the base, and 5 steps of each run
    assert len(rows(path, metric="avg")) == checkpoints * 4  # three benchmarks and the macro mean


def test_values_equal_a_computation_by_hand(done):
    root, _, paths = done
    each = {b: by_hand(root, "mcpo", 1, b) for b in ("easy", "hard", "noop")}
    for b, value in each.items():
        got = one(paths["summary"], method="mcpo", seed=1, step=20, benchmark=b, metric="avg")
        assert float(got["value"]) == pytest.approx(value, abs=1e-9)
    macro = one(paths["summary"], method="mcpo", seed=1, step=20, benchmark="macro", metric="avg")
    assert float(macro["value"]) == pytest.approx(statistics.mean(each.values()), abs=1e-9)
    assert (macro["problems"], macro["samples"]) == ("60", "240")


def test_averages_take_the_place_of_the_macro_mean(done, small, tmp_path):
    root, _, _ = done
    averages = {"two": {"label": "Two sets", "of": ["noop", "easy"]}, "other": {"of": ["hard"]}}
    study = load_study({**small, "averages": averages})
    spec = specs(study)["aggregate"]
    paths = aggregate(spec, root, tmp_path)
    assert not rows(paths["summary"], benchmark="macro")
    means = {m: statistics.mean(by_hand(root, m, 1, b) for b in ("easy", "noop")) for m in ("mcpo", "grpo")}
    got = one(paths["summary"], method="mcpo", seed=1, step=20, benchmark="two", metric="avg")
    assert float(got["value"]) == pytest.approx(means["mcpo"], abs=1e-9)
    assert (got["problems"], got["samples"]) == ("40", "160")
    pair = one(paths["paired"], method="mcpo", step=20, benchmark="two", metric="avg")
    values = dict(item.split(":") for item in pair["seed_values"].split())
    assert float(values["1"]) == pytest.approx(means["mcpo"] - means["grpo"], abs=1e-9)
    assert one(paths["paired_problems"], method="mcpo", benchmark="two")["problems"] == "40"
    assert rows(paths["strata"], benchmark="pooled two")
    results = load(spec, tmp_path)
    assert results.headline == "two"
    assert results.shown_benchmarks() == ["easy", "hard", "noop", "two", "other"]
    assert results.plan.benchmark_label("two") == "Two sets"


def test_an_average_with_a_missing_part_has_no_value(done, small, tmp_path):
    _, specs_, _ = done
    spec = {**specs_["aggregate"], "averages": {"two": {"label": "", "of": ["easy", "hard"]}}}
    spec["benchmarks"] = {**spec["benchmarks"], "hard": {**spec["benchmarks"]["hard"], "checkpoints": "final"}}
    place, _ = build(tmp_path / "part", small)
    (place / "eval/tiny/mcpo/seed0/step20/hard.parquet").unlink()
    path = aggregate(spec, place, tmp_path)["summary"]
    assert one(path, method="mcpo", seed=0, step=20, benchmark="two", metric="avg")["value"] == ""
    assert one(path, method="mcpo", seed=1, step=20, benchmark="two", metric="avg")["value"]
    assert not rows(path, benchmark="two", step=4)  # only one of its parts is asked there


def test_paired_equals_scipy_on_the_same_seeds(done):
    root, _, paths = done
    a, b = ([by_hand(root, m, s, "hard") for s in (0, 1)] for m in ("scapo", "grpo"))
    want = stats.ttest_rel(a, b)
    got = one(paths["paired"], method="scapo", benchmark="hard", step=20, metric="avg")
    assert float(got["difference"]) == pytest.approx(np.mean(a) - np.mean(b), abs=1e-9)
    assert float(got["p"]) == pytest.approx(want.pvalue, abs=1e-6)
    low, high = want.confidence_interval()
    assert (float(got["low"]), float(got["high"])) == pytest.approx((low, high), abs=1e-6)
    assert (got["seeds"], got["seeds_expected"], float(got["sign_flip_p"])) == ("2", "2", 0.5)
    assert got["seed_values"] == " ".join(f"{s}:{x - y:.10g}" for s, (x, y) in enumerate(zip(a, b, strict=True)))


def test_paired_over_problems_averages_the_seeds_first(done):
    root, _, paths = done
    per = {}
    for m in ("mcpo", "grpo"):
        for s in (0, 1):
            for r in read_table("samples", root / f"eval/tiny/{m}/seed{s}/step20/easy.parquet").to_pylist():
                per.setdefault((r["problem_id"], m), []).append(r["correct"])
    ids = sorted({p for p, _ in per})
    d = [np.mean(per[p, "mcpo"]) - np.mean(per[p, "grpo"]) for p in ids]
    got = one(paths["paired_problems"], method="mcpo", benchmark="easy")
    assert float(got["difference"]) == pytest.approx(np.mean(d), abs=1e-9)
    assert float(got["se"]) == pytest.approx(np.std(d, ddof=1) / len(d) ** 0.5, abs=1e-9)
    assert float(got["boot_low"]) <= float(got["difference"]) <= float(got["boot_high"])


def test_two_runs_give_equal_bytes(done, tmp_path):
    root, specs, paths = done
    again = aggregate(specs["aggregate"], root, tmp_path)
    for name in STABLE:
        assert again[name].read_bytes() == paths[name].read_bytes(), name


def test_order_of_rows_and_of_the_grid_changes_no_byte(done, small, tmp_path):
    _root, specs, paths = done
    other, _ = build(tmp_path, small)
    for path in other.rglob("*.parquet"):
        kind = "samples" if "eval" in path.parts else path.stem
        if kind in ("samples", "metrics"):
            table = read_table(kind, path)
            write_table(kind, table.take(np.random.default_rng(1).permutation(table.num_rows)), path)
    grid = {k: v[::-1] if isinstance(v, list) else v for k, v in specs["aggregate"]["grid"].items()}
    spec = {**specs["aggregate"], "grid": grid}
    again = aggregate(spec, other, tmp_path / "analysis")
    for name in STABLE:
        assert again[name].read_bytes() == paths[name].read_bytes(), name


def test_a_missing_file_is_shown_and_never_averaged_over(done, small, tmp_path):
    _, _, full = done
    root, specs = build(tmp_path, small)
    (root / "eval/tiny/mcpo/seed1/step20/hard.parquet").unlink()
    for path in sorted((root / "eval/tiny/scapo/seed0").rglob("*.parquet")):
        path.unlink()
    (root / "train/tiny/scapo/seed0/metrics.parquet").unlink()
    paths = aggregate(specs["aggregate"], root, tmp_path / "analysis")
    for benchmark in ("hard", "macro"):
        gap = one(paths["summary"], method="mcpo", seed=1, step=20, benchmark=benchmark)
        assert (gap["metric"], gap["value"], gap["problems"], gap["samples"]) == ("avg", "", "0", "0")
    for benchmark in ("easy", "noop"):  # what exists stays as it was
        key = {"method": "mcpo", "benchmark": benchmark, "step": 20, "metric": "avg"}
        assert one(paths["paired"], **key)["difference"] == one(full["paired"], **key)["difference"]
    macro = one(paths["paired"], method="mcpo", benchmark="macro", step=20, metric="avg")
    assert (macro["seeds"], macro["seeds_expected"], macro["p"]) == ("1", "2", "")
    assert macro["seed_values"].startswith("0:")
    curve = rows(paths["curves"], method="scapo", metric="reward_mean")
    assert {(r["seeds"], r["seeds_expected"], r["sd"]) for r in curve} == {("1", "2", "")}


def test_an_empty_results_folder_aggregates_to_gaps_only(done, tmp_path):
    paths = aggregate(done[1]["aggregate"], tmp_path / "nothing", tmp_path / "analysis")
    assert {r["value"] for r in rows(paths["summary"])} == {""}
    assert {r["seeds"] for r in rows(paths["paired"])} == {"0"}
    assert {r["difference"] for r in rows(paths["paired_problems"])} == {""}
    assert rows(paths["curves"]) == rows(paths["grading"]) == rows(paths["timing"]) == []


def test_grading_counts_both_graders(done):
    root, _, paths = done
    table = read_table("samples", root / "eval/tiny/grpo/seed0/step20/easy.parquet").to_pylist()
    got = one(paths["grading"], method="grpo", seed=0, step=20, benchmark="easy")
    assert int(got["correct"]) == sum(r["correct"] for r in table)
    assert int(got["correct_library"]) == sum(r["correct_library"] for r in table)
    assert int(got["ours_only"]) == sum(r["correct"] and not r["correct_library"] for r in table)
    assert int(got["no_box"]) + int(got["ok"]) == len(table) == int(got["samples"])


def test_timing_adds_the_steps_of_a_phase(done):
    path = done[2]["timing"]
    got = one(path, method="grpo", seed=0, stage="train", phase="rollout")
    assert (float(got["value"]), got["unit"]) == (pytest.approx(20 * 0.4), "s")
    assert one(path, method="grpo", seed=0, phase="peak_memory")["unit"] == "MiB"
    assert len(rows(path, stage="evaluate", method="base")) == 3


def test_a_benchmark_that_changed_between_evaluations_is_an_error(small, tmp_path):
    root, specs = build(tmp_path, small)
    path = root / "eval/tiny/mcpo/seed0/step20/easy.parquet"
    table = read_table("samples", path)
    write_table("samples", table.slice(4), path)  # one problem fewer
    with pytest.raises(UserError, match="asks other problems"):
        aggregate(specs["aggregate"], root, tmp_path)


def test_a_spec_without_its_keys_is_an_error(tmp_path):
    with pytest.raises(UserError, match="grid"):
        aggregate({"study": "x"}, tmp_path, tmp_path)


def test_csv_refuses_rows_with_other_columns(tmp_path):
    with pytest.raises(KeyError):
        write_csv(tmp_path / "x.csv", ("a", "b"), [{"a": 1}], keys=1)

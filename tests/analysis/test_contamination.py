"""Groups by date, and gains before and after a model's release, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.fake_results import build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.analysis.contamination import groups, scores
from tokencredit.reporting import contamination
from tokencredit.reporting.results import load
from tokencredit.study.config import Benchmark, load_study
from tokencredit.study.dates import group_of
from tokencredit.study.errors import UserError
from tokencredit.study.grid import specs
from tokencredit.study.registry import entries, published

DAY = date(2025, 4, 28)


def benchmark(*months: str, kind: str = "jsonl") -> Benchmark:
    source = {"kind": "synthetic", "split": "easy", "size": 4} if kind == "synthetic" else {"kind": kind, "path": "a"}
    return Benchmark.model_validate({"source": source, "published": list(months)})


@pytest.mark.parametrize(
    ("made", "day", "group"),
    [
        (benchmark("2025-03"), DAY, "before"),
        (benchmark("2025-04"), DAY, "before"),  # the month of the release: not to be told apart
        (benchmark("2025-05"), DAY, "after"),
        (benchmark("2024-02", "2026-02"), DAY, "both"),
        (benchmark("2025-11", "2026-02"), DAY, "after"),
        (benchmark(), DAY, "unknown"),
        (benchmark("2025-03"), None, "unknown"),
        (benchmark(kind="synthetic"), None, "made"),
    ],
)
def test_group_by_month_and_day(made: Benchmark, day: date | None, group: str) -> None:
    assert group_of(made.published, day, made.source.kind == "synthetic") == group


def test_gains_of_groups_are_paired_over_seeds() -> None:
    found = groups({"a": benchmark("2024-01"), "b": benchmark("2024-02"), "c": benchmark("2026-01")}, DAY)
    assert found == {"before": ("a", "b"), "after": ("c",)}
    table = {
        "grpo": {"a": {0: 0.2, 1: 0.3}, "b": {0: 0.4, 1: 0.5}, "c": {0: 0.1, 1: 0.1}},
        "mcpo": {"a": {0: 0.4, 1: 0.5}, "b": {0: 0.6, 1: 0.5, 2: 0.9}, "c": {0: 0.2, 1: 0.1}},
    }

    def values(method: str, name: str) -> Mapping[int, float]:
        return table[method][name]

    rows, changes = scores(found, {"grpo": "", "mcpo": ""}, "grpo", values)
    by = {(r.method, r.group): r for r in rows}
    assert by["mcpo", "before"].value == pytest.approx((0.5 + 0.5) / 2)  # seed 2 was not asked everything
    gain = by["mcpo", "before"].gain
    assert gain is not None and gain.difference == pytest.approx((0.2 + 0.1) / 2)
    assert by["grpo", "after"].gain is None
    assert changes["mcpo"].values == pytest.approx({0: 0.2 - 0.1, 1: 0.1 - 0.0})


def study(**changes: Any) -> dict[str, Any]:
    values = config(seeds=2, rollouts=10, samples=2)
    values["models"]["tiny"] |= changes
    values["benchmarks"]["easy"]["published"] = "2024-02"
    values["benchmarks"]["hard"]["published"] = ["2025-06", "2025-07"]
    return values


def test_section_shows_groups_and_leaves_out_models_without_a_day(tmp_path: Path) -> None:
    values = study(released="2025-04-28")
    root, made = build(tmp_path, values)
    aggregate(made["aggregate"], root, root / "analysis")
    results = load(made["aggregate"], root / "analysis")
    section = contamination.section(results, load_study(values))
    assert section is not None
    for text in ("released on 2025-04-28", "Easy sums", "Published after", "Made here", "Gain before minus gain after"):
        assert text in section.html, text
    assert contamination.section(results, load_study(study())) is None


def test_a_day_of_release_is_read_from_yaml_and_from_a_spec_and_trains_nothing() -> None:
    quoted, plain = (load_study(study(released=day)) for day in ("2025-04-28", DAY))
    assert quoted == plain
    one, other = specs(plain), specs(load_study(study()))
    assert {name for name in one if one[name] != other[name]} == {"report"}
    assert load_study(one["report"]["config"]).models["tiny"].released == DAY


def test_a_month_that_is_none_is_named() -> None:
    values = study()
    values["benchmarks"]["easy"]["published"] = "2024-13"
    with pytest.raises(UserError, match=r"benchmarks\.easy\.published"):
        load_study(values)


def test_the_registry_knows_months_and_those_of_parts() -> None:
    assert published("aime_2025") == ("2025-02",)
    assert published("aime_2024_2026") == ("2024-02", "2025-02", "2026-02")
    assert published("smt_2025") == ()
    values = config() | {"benchmarks": {"aime_2024_2026": {}}}
    values["grid"] |= {"benchmarks": ["aime_2024_2026"]}
    assert load_study(values).benchmarks["aime_2024_2026"].published == ("2024-02", "2025-02", "2026-02")
    for name, entry in entries().items():
        years = {word for word in name.split("_") if word.isdigit() and len(word) == 4}
        if years and entry.published:
            assert {month[:4] for month in entry.published} <= years, name

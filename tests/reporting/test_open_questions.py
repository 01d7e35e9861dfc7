"""The sections on gain and length: numbers are those of the files, words follow the intervals."""

from __future__ import annotations

import csv
import html
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.fake_results import build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.analysis.plan import plan
from tokencredit.reporting import gain, length
from tokencredit.reporting.length import Arm, arms, controls, sentence
from tokencredit.reporting.results import Results, load
from tokencredit.reporting.text import signed
from tokencredit.study.config import load_study
from tokencredit.study.files import overlay, read_yaml
from tokencredit.study.grid import specs


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    root, made = build(tmp_path_factory.mktemp("open"), config(seeds=3, rollouts=10, samples=4))
    aggregate(made["aggregate"], root, root / "analysis")
    return root, load(made["aggregate"], root / "analysis")


def rows(root: Path, name: str, **wanted: str) -> list[dict[str, str]]:
    with open(root / "analysis" / f"{name}.csv", newline="") as handle:
        return [r for r in csv.DictReader(handle) if all(r[k] == v for k, v in wanted.items())]


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<svg.*?</svg>", "", page, flags=re.S))))


def test_gain_shows_the_other_runs_numbers_and_the_naive_ones_beside(
    study: tuple[Path, Results], tmp_path: Path
) -> None:
    root, results = study
    made = gain.section(results, root, tmp_path, ["Said <elsewhere>."])
    assert made is not None
    said = text_of(made.html)
    for r in rows(root, "strata", benchmark="pooled", method="mcpo"):
        if r["difference"] and r["sorted_by"] in ("run", "same"):
            assert signed(float(r["difference"])) in said
    assert "sorted by another run" in said
    assert "Said &lt;elsewhere&gt;." in made.html
    assert {p.suffix for p in made.files} >= {".svg", ".png"}
    assert all(p.exists() for p in made.files)


def test_one_run_is_sorted_by_halves(tmp_path: Path) -> None:
    root, made = build(tmp_path, config(seeds=1, rollouts=10, samples=4))
    aggregate(made["aggregate"], root, root / "analysis")
    section = gain.section(load(made["aggregate"], root / "analysis"), root, tmp_path)
    assert section is not None
    assert "sorted by the other half" in text_of(section.html)


def test_nothing_to_compare_makes_no_section(tmp_path: Path) -> None:
    root, made = build(tmp_path, config(seeds=1, rollouts=10, samples=2))
    for path in root.glob("eval/tiny/grpo/**/*.parquet"):
        path.unlink()
    aggregate(made["aggregate"], root, root / "analysis")
    results = load(made["aggregate"], root / "analysis")
    assert gain.section(results, root, tmp_path) is None
    assert length.section(results, root, tmp_path) is None


def test_length_has_the_numbers_of_its_files(study: tuple[Path, Results], tmp_path: Path) -> None:
    root, results = study
    made = length.section(results, root, tmp_path)
    assert made is not None
    said = text_of(made.html)
    (row,) = rows(root, "equal_length", method="mcpo", benchmark="macro")
    assert f"MCPO's answers are {float(row['ratio']):.2f} times as long as GRPO's" in said
    assert signed(float(row["equal"])) in said
    (slope,) = rows(root, "length_models", fit="runs", term="slope", benchmark="macro")
    assert f"10 % longer scores {signed(float(slope['estimate']) * math.log2(1.1))} points" in said
    assert "pass@k for equally many tokens" in said


SURE = {
    "method": "mcpo", "ratio": "2.1", "ratio_low": "1.9", "ratio_high": "2.3",
    "matched": "0.02", "matched_low": "-0.01", "matched_high": "0.05",
    "gain": "0.065", "gain_low": "0.041", "gain_high": "0.09", "equal": "0.031", "equal_low": "-0.01",
    "equal_high": "0.07", "share": "0.47", "share_low": "-0.2", "share_high": "1.1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, "Of its gain of +6.5 points (+4.1 to +9.0), +3.1 points (−1.0 to +7.0) remain within"),
        ({}, "Between answers to one problem of like length it is +2.0 (−1.0 to +5.0)."),
        ({}, "47 % of it (−20 to 110 %)"),
        ({"share": ""}, "the share is left open"),
        ({"gain_low": "-0.01"}, "cannot be told from zero"),
        ({"gain_low": "", "gain_high": ""}, "has no interval (one run)"),
        ({"gain": "-0.05", "gain_low": "-0.08", "gain_high": "-0.02"}, "Of its loss of −5.0 points"),
        ({"ratio": "1.01"}, "answers are about as long as GRPO's. "),
        ({}, "the length that holds 95 % of GRPO's answers"),
    ],
)
def test_words_say_no_more_than_the_numbers(change: dict[str, str], wanted: str) -> None:
    expected = plan(specs(load_study(config()))["aggregate"])
    assert wanted in sentence(expected, SURE | change)


def test_arms_name_whose_length_they_have_and_what_they_would_be_without(root: Path) -> None:
    values = overlay(read_yaml(root / "config.yaml"), read_yaml(root / "workflow/studies/length.yaml"))
    values["methods"]["odd"] = {"length": {"like": "grpo"}, "reduction": "constant"}
    values["grid"]["methods"].append("odd")
    assert arms(load_study(values)) == [
        Arm("grpo_long", "mcpo", "grpo"),
        Arm("mcpo_short", "grpo", "mcpo"),
        Arm("odd", "grpo", None),
    ]


def arm_results(differences: dict[str, tuple[float, float, float]]) -> Results:
    values: dict[str, Any] = config()
    values["methods"] |= {"arm": {"label": "GRPO, long"}}
    values["grid"]["methods"].append("arm")
    expected = plan(specs(load_study(values))["aggregate"])
    pairs = {}
    for name, (difference, low, high) in differences.items():
        row = {"difference": difference, "low": low, "high": high, "se": 0.01, "t": 1, "p": 0.1, "sign_flip_p": 0.2}
        row = {k: str(v) for k, v in row.items()} | {"seeds": "3", "seed_values": "0:0.1"}
        pairs["tiny", name, expected.last, "macro", "avg", 8] = row
    return Results(expected, {}, pairs, {}, [])


def test_a_control_arm_says_what_part_of_the_gain_it_reaches() -> None:
    results = arm_results({"mcpo": (0.08, 0.05, 0.11), "arm": (0.02, -0.01, 0.05)})
    (said,) = controls(results, "tiny", [Arm("arm", "mcpo", "grpo")])
    assert said == (
        "GRPO, long, at the length of MCPO, is +2.0 points (−1.0 to +5.0) above GRPO: "
        "it reaches 25 % of MCPO's gain of +8.0."
    )
    (kept,) = controls(results, "tiny", [Arm("arm", "grpo", "mcpo")])
    assert "it keeps 25 % of MCPO's gain" in kept


def test_no_part_is_told_of_a_gain_that_may_be_none() -> None:
    results = arm_results({"mcpo": (0.08, -0.05, 0.11), "arm": (0.02, -0.01, 0.05)})
    (said,) = controls(results, "tiny", [Arm("arm", "mcpo", "grpo")])
    assert said.endswith("MCPO itself has no gain that can be told from zero.")
    assert controls(arm_results({}), "tiny", [Arm("arm", "mcpo", "grpo")]) == []

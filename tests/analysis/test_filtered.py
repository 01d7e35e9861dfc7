"""The filtered-decoding analysis on a random tiny model: what it writes, and that a restart writes the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.training.conftest import inputs, study  # noqa: F401 (a fixture)
from tokencredit.analysis import filtered
from tokencredit.study import load_study, specs
from tokencredit.study.config import Runtime
from tokencredit.study.errors import GoOn, UserError
from tokencredit.study.tables import read_json, read_table, write_table

ARMS = ["filter", "plain", "temperature", "greedy", "random"]


class FakeGrader:
    """Right where the response has an even number of characters; a context manager like the real one."""

    def __init__(self, **_: Any) -> None: ...
    def __enter__(self) -> FakeGrader:
        return self

    def __exit__(self, *_: object) -> None: ...

    def grade(self, items: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(correct=len(i.response) % 2 == 0, extracted="", status="ok") for i in items]


class Events:
    def metrics(self, values: dict[str, float], step: int) -> None:
        assert all(isinstance(v, float) for v in values.values())


def spec(**analysis: Any) -> dict[str, Any]:
    values = study()
    settings = {"kind": "filtered", "count": 5, "samples": 2, "max_tokens": 8, "shard_samples": 4, "cap": 0.6}
    values["analyses"] = {"f": settings | analysis}
    values["grid"] |= {"analyses": ["f"]}
    return specs(load_study(values))["analysis.f.m"]


Run = Callable[..., tuple[dict[str, Any], pa.Table]]


@pytest.fixture
def run(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    monkeypatch.setattr(filtered, "Grader", FakeGrader)

    def call(
        name: str = "out", wall_minutes: float | None = None, semifactuals: Path | None = None, **analysis: Any
    ) -> tuple[dict[str, Any], pa.Table]:
        out, table = tmp_path / name, semifactuals or inputs / "semifactuals.parquet"
        runtime = Runtime(device="cpu", wall_minutes=wall_minutes)
        filtered.analyse(
            spec(**analysis), inputs / "base.json", inputs / "problems.parquet", table, out,
            tmp_path / f"{name}.state", runtime, Events(),
        )  # fmt: skip
        return read_json(out / "record.json"), read_table("filtered_samples", out / "filtered_samples.parquet")

    return call


def test_every_arm_asks_the_same_problems_with_the_same_seeds(run: Run) -> None:
    record, table = run()
    rows = table.to_pylist()
    assert list(dict.fromkeys(r["arm"] for r in rows)) == ARMS
    asked = {arm: [(r["problem_id"], r["sample"], r["seed"]) for r in rows if r["arm"] == arm] for arm in ARMS}
    assert len(asked["filter"]) == 10
    assert len({seed for _, _, seed in asked["filter"]}) == 10
    assert all(asked[arm] == asked["filter"] for arm in ("plain", "temperature", "random"))
    assert asked["greedy"] == [t for t in asked["filter"] if t[1] == 0]
    assert all((r["rejected"] is None) == (r["arm"] not in ("filter", "random")) for r in rows)
    assert record["counts"] == {"problems": 5, "left_out": 0, "samples": 45, "resumed_parts": 0}


def test_the_record_is_what_the_table_says(run: Run) -> None:
    record, table = run()
    results, rows = record["results"], table.to_pylist()
    for arm in ARMS:
        own = [r for r in rows if r["arm"] == arm]
        assert results["arms"][arm]["accuracy"] == pytest.approx(sum(r["correct"] for r in own) / len(own))
        assert results["arms"][arm]["tokens_mean"] == pytest.approx(sum(r["token_count"] for r in own) / len(own))
    own = [r for r in rows if r["arm"] == "filter"]
    plain = [r for r in rows if r["arm"] == "plain"]
    steps = sum(r["token_count"] for r in own)
    mask = results["masks"]["filter"]
    assert mask["rejected_per_response"] == pytest.approx(sum(r["rejected"] for r in own) / len(own))
    assert mask["rejected_share"] == pytest.approx(sum(r["rejected"] for r in own) / steps)
    assert mask["masked_mass"] == pytest.approx(sum(r["masked_mass"] * r["token_count"] for r in own) / steps)
    assert 0 < mask["masked_mass"] == mask["budget"] <= 0.6
    assert 0 < results["masks"]["random"]["masked_mass"] <= results["masks"]["random"]["budget"] <= 0.6
    assert mask["entropy"] < mask["clean_entropy"]
    assert results["matched"]["target"] == mask["entropy"]
    pairs = Counter((p["correct"], f["correct"]) for p, f in zip(plain, own, strict=True))
    names = {"both_right": (1, 1), "right_to_wrong": (1, 0), "wrong_to_right": (0, 1), "both_wrong": (0, 0)}
    assert {k: results["paired"][k] for k in names} == {k: pairs[bool(a), bool(b)] for k, (a, b) in names.items()}
    assert sum(t["count"] for t in results["rejected_tokens"]) <= sum(r["rejected"] for r in own)
    assert set(results["controls"]) == {"temperature", "greedy", "random"}


def test_runs_are_alike_byte_for_byte(run: Run, tmp_path: Path) -> None:
    first, _ = run("a")
    second, _ = run("b")
    assert first["results"] == second["results"]
    assert (tmp_path / "a/filtered_samples.parquet").read_bytes() == (
        tmp_path / "b/filtered_samples.parquet"
    ).read_bytes()


def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("whole")
    generate, calls = filtered.generate_filtered, []

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return generate(*arguments)

    monkeypatch.setattr(filtered, "generate_filtered", killed)
    with pytest.raises(Killed):
        run("cut")
    (part,) = (tmp_path / "cut.state").glob("*/filter-00001.json")
    part.write_text("{half a file")  # done again
    record, _ = run("cut")
    assert record["counts"]["resumed_parts"] == 1
    whole, cut = (tmp_path / name / "filtered_samples.parquet" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()
    assert not (tmp_path / "cut.state").exists()


def test_a_budget_of_time_ends_it_between_parts(run: Run, tmp_path: Path) -> None:
    with pytest.raises(GoOn):
        run("late", wall_minutes=1e-9)
    assert not (tmp_path / "late").exists()
    for _ in range(40):
        try:
            record, _ = run("late", wall_minutes=1e-9)
        except GoOn:
            continue
        break
    assert record["results"] == run("free")[0]["results"]


def test_problems_use_the_kinds_they_have(run: Run) -> None:
    record, table = run(count=6)
    kinds = {r["problem_id"]: r["perturbations"] for r in table.to_pylist()}
    assert kinds == {f"p{i}": 3 if i == 3 else 4 for i in range(6)}
    assert record["results"]["perturbations"] == {"3": 2, "4": 10}


def test_problems_without_a_kind_are_named_and_left_out(run: Run) -> None:
    record, table = run(count=6, kinds=["paraphrase"])
    assert record["left_out"] == ["p3"]
    assert record["counts"]["left_out"] == 1
    assert record["results"]["arms"]["filter"]["problems"] == 5
    assert "p3" not in set(table.column("problem_id").to_pylist())


def test_no_perturbations_at_all_is_an_error_that_says_what_to_do(run: Run, tmp_path: Path) -> None:
    empty = write_table("semifactuals", [], tmp_path / "none.parquet")
    with pytest.raises(UserError, match=r"none of the 5 problems.*semifactuals\.kinds"):
        run(semifactuals=empty)


def test_a_kind_that_was_never_made_is_an_error(run: Run) -> None:
    with pytest.raises(UserError, match="kind typo; have"):
        run(kinds=["paraphrase", "typo"])


def test_without_controls(run: Run) -> None:
    record, table = run(controls=False)
    assert set(table.column("arm").to_pylist()) == {"filter", "plain"}
    assert record["results"]["controls"] == {}
    assert record["results"]["matched"] is None


def test_cap_zero_changes_nothing(run: Run) -> None:
    record, table = run(cap=0.0)
    texts = {arm: [r["text"] for r in table.to_pylist() if r["arm"] == arm] for arm in ARMS}
    assert texts["filter"] == texts["plain"] == texts["random"]
    assert record["results"]["matched"]["temperature"] == pytest.approx(1.0, rel=1e-3)
    assert record["results"]["gains"]["filter"] == {"gain": 0.0, "low": 0.0, "high": 0.0}
    assert record["results"]["paired"]["p"] == 1.0


def test_settings_are_checked() -> None:
    for wrong in ({"cap": 1.0}, {"kinds": []}, {"kinds": ["paraphrase", "paraphrase"]}, {"samples": 0}, {"caps": 0.5}):
        with pytest.raises(UserError):
            spec(**wrong)

"""The fidelity analysis on a random tiny model: what it writes, and that a restart writes the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.conftest import inputs, study  # noqa: F401 (a fixture)
from tokencredit.analysis import fidelity
from tokencredit.study import load_study, specs
from tokencredit.study.config import Runtime
from tokencredit.study.errors import GoOn
from tokencredit.study.tables import read_json, read_table
from tokencredit.training.update import prepare

LIMIT = 20  # response tokens: long enough for most to end by themselves
TABLES = ("fidelity_tokens", "fidelity_credits", "fidelity_scores")
METHODS: dict[str, Any] = {
    "scapo": {"credit": [{"kind": "margin"}, {"kind": "semifactual", "steps": 6, "strength": 0.1}]},
    "grpo": {},
    "entropy": {"credit": [{"kind": "entropy", "share": 0.3}]},
    "oracle": {"credit": [{"kind": "oracle", "samples": 4}]},
}


class FakeGrader:
    """Right where the response has an even number of characters; a context manager like the real one."""

    def __init__(self, **_: Any) -> None: ...
    def __enter__(self) -> FakeGrader:
        return self

    def __exit__(self, *_: object) -> None: ...

    def grade(self, items: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(correct=self.right(item)) for item in items]

    def right(self, item: Any) -> bool:
        return len(item.response) % 2 == 0


class AlwaysWrong(FakeGrader):
    def right(self, item: Any) -> bool:
        return False


class Events:
    def metrics(self, values: dict[str, float], step: int) -> None:
        assert all(isinstance(v, float) for v in values.values())


def spec(**analysis: Any) -> dict[str, Any]:
    values = study(max_tokens=LIMIT)
    values["methods"] = METHODS
    values["analyses"] = {
        "f": {
            "kind": "fidelity", "count": 6, "responses": 9, "samples": 6, "max_tokens": LIMIT, "draws": 100,
            "tolerance": 0.05, "shard_responses": 3, **analysis,
        }
    }  # fmt: skip
    values["grid"] |= {"methods": list(METHODS), "analyses": ["f"], "baseline": "grpo"}
    return specs(load_study(values))["analysis.f.m"]


@pytest.fixture
def run(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:  # noqa: F811
    monkeypatch.setattr(fidelity, "Grader", FakeGrader)

    def call(name: str, runtime: Runtime | None = None, **analysis: Any) -> Path:
        out = tmp_path / name
        fidelity.analyse(
            spec(**analysis), inputs / "base.json", inputs / "problems.parquet", inputs / "semifactuals.parquet", out,
            tmp_path / f"{name}.state", runtime or Runtime(device="cpu"), Events(),
        )  # fmt: skip
        return out

    return call


def bytes_of(out: Path) -> list[bytes]:
    return [(out / f"{name}.parquet").read_bytes() for name in TABLES]


def test_tables_hold_what_their_columns_say(run: Callable[..., Path]) -> None:
    out = run("a")
    tokens = read_table("fidelity_tokens", out / "fidelity_tokens.parquet").to_pylist()
    credits = read_table("fidelity_credits", out / "fidelity_credits.parquet").to_pylist()
    record = read_json(out / "record.json")
    assert record["counts"]["measured"] == 9 and record["counts"]["tokens"] == len(tokens)
    assert len(credits) == len(METHODS) * len(tokens)
    responses: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in tokens:
        responses.setdefault((row["problem_id"], row["sample"]), []).append(row)
    for rows in responses.values():
        assert [r["position"] for r in rows] == list(range(len(rows)))
        for r in rows:
            assert abs(r["effect"]) <= 1 - math.exp(r["logprob"]) + 1e-6
            assert r["drawn"] in (0, 6) and (r["drawn"] > 0) == (r["se"] > 0)
            assert r["effect"] == pytest.approx((r["effect_first"] + r["effect_second"]) / 2)
            assert r["bound"] <= 0.05 + 1e-9 and r["moved"] is None and r["planted"] is None
        text = "".join(r["piece"] for r in rows)
        if len(rows) < LIMIT:  # else cut off, which earns nothing
            assert rows[0]["correct"] == (len(text) % 2 == 0)
        assert rows[0]["value"] + sum(r["effect"] for r in rows) == pytest.approx(float(rows[0]["correct"]))
    flat = [r for r in credits if r["method"] == "grpo"]
    assert all(r["credit"] == r["advantage"] != 0 for r in flat)
    scores = read_table("fidelity_scores", out / "fidelity_scores.parquet").to_pylist()
    (rank,) = [r for r in scores if (r["credit"], r["score"], r["category"]) == ("grpo", "rank", "all")]
    assert rank["value"] == 0 and rank["n"] <= 9


def test_measured_responses_are_in_mixed_groups(run: Callable[..., Path]) -> None:
    credits = read_table("fidelity_credits", run("a") / "fidelity_credits.parquet").to_pylist()
    assert all(r["advantage"] != 0 for r in credits)


def test_a_killed_job_goes_on_and_writes_the_same_bytes(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run("whole")
    measure, calls = fidelity.prefix_values, []

    def dying(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return measure(*args, **more)

    monkeypatch.setattr(fidelity, "prefix_values", dying)
    with pytest.raises(RuntimeError, match="killed"):
        run("again")
    (kept,) = (tmp_path / "again.state").rglob("values-00000.json")
    before = len(calls)
    again = run("again")
    assert bytes_of(again) == bytes_of(whole)
    assert not kept.exists(), "state is removed at the end"
    assert len(calls) - before < before + 2, "the first part was not measured again"
    a, b = (read_json(out / "record.json") for out in (whole, again))
    assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_a_wall_time_budget_ends_in_go_on_and_the_same_bytes(run: Callable[..., Path]) -> None:
    whole, rounds = run("whole", shard_responses=1), 0
    short = Runtime(device="cpu", wall_minutes=1e-6)
    while True:
        try:
            again = run("again", short, shard_responses=1)
            break
        except GoOn:
            rounds += 1
    assert rounds >= 2
    assert bytes_of(again) == bytes_of(whole)


def test_a_damaged_part_is_done_again(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run("whole")
    with monkeypatch.context() as m:
        m.setattr(fidelity.Run, "look", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("again")
    parts = sorted((tmp_path / "again.state").rglob("values-*.json"))
    assert len(parts) > 1
    parts[0].write_text(parts[0].read_text()[:50])
    parts[1].write_text('{"rows": []}')
    assert bytes_of(run("again")) == bytes_of(whole)


def test_without_mixed_groups_the_tables_are_empty(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "Grader", AlwaysWrong)
    out = run("a")
    assert [read_table(name, out / f"{name}.parquet").num_rows for name in TABLES] == [0, 0, 0]
    record = read_json(out / "record.json")
    assert record["counts"]["measured"] == 0 and record["results"]["mixed_groups"] == 0


@pytest.mark.parametrize("name", ["scapo", "grpo", "entropy"])
def test_credit_is_what_the_trainer_would_learn_from(
    name: str, run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout of the analysis, prepared by the trainer: the same advantages on the tokens that stay in the loss."""
    kept: dict[str, Any] = {}
    credit = fidelity.Run.credit

    def keeping(self: Any, rollout: Any, rows: Any, grader: Any) -> Any:
        kept.update(run=self, rollout=rollout, rows=rows, credit=credit(self, rollout, rows, grader))
        return kept["credit"]

    monkeypatch.setattr(fidelity.Run, "credit", keeping)
    run("a")
    own, rollout = kept["run"], kept["rollout"]
    sources = fidelity.Sources(own.perturbed, own.prompter.pieces, None)
    batch = prepare(own.policy, rollout, own.methods[name], own.training, 1, sources, {})
    for row, given in zip(kept["rows"], kept["credit"][name], strict=True):
        size = len(rollout.responses[row])
        learned = torch.where(batch.loss_mask[row], batch.advantage[row], 0.0)[:size]
        assert np.allclose(given.token, learned.double().numpy(), rtol=1e-4, atol=1e-5)


def test_shards_never_divide_a_group() -> None:
    rows = sorted(np.random.default_rng(0).choice(400, 120, replace=False).tolist())
    parts = fidelity.shards(rows, 8, 10)
    assert [row for part in parts for row in part] == rows
    assert all(len(part) >= 10 for part in parts[:-1])
    groups = [{row // 8 for row in part} for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups))

"""The panel on a random tiny model: what it writes, and that a restart writes the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.test_fidelity import Events, FakeGrader
from tests.training.conftest import inputs, study  # noqa: F401 (a fixture)
from tokencredit.analysis import panel
from tokencredit.study import UserError, load_study, specs
from tokencredit.study.config import Runtime
from tokencredit.study.tables import read_json, read_table


class Killed(BaseException):
    """Stands for SIGKILL in process."""


def spec(**more: Any) -> dict[str, Any]:
    values = study(max_tokens=6)
    values["analyses"] = {"panel": {"kind": "panel", "count": 5, "max_tokens": 6, "shard_problems": 2, **more}}
    values["grid"]["analyses"] = ["panel"]
    return specs(load_study(values))["analysis.panel.m"]


@pytest.fixture
def go(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:  # noqa: F811
    monkeypatch.setattr(panel, "Grader", FakeGrader)

    def run(root: Path, **more: Any) -> Path:
        base, problems, texts = (inputs / n for n in ("base.json", "problems.parquet", "semifactuals.parquet"))
        runtime = Runtime(device="cpu")
        panel.analyse(spec(**more), base, problems, texts, root / "out", root / "state", runtime, Events())
        return root / "out"

    return run


def test_tokens_and_record(go: Callable[..., Path], tmp_path: Path) -> None:
    out = go(tmp_path)
    rows = read_table("panel_tokens", out / "panel_tokens.parquet").to_pylist()
    record = read_json(out / "record.json")
    assert len({r["problem_id"] for r in rows}) == record["results"]["responses"] == 5
    assert record["results"]["tokens"] == len(rows)
    for r in rows:
        lacks = r["problem_id"] == "p3"  # its paraphrase was refused
        assert [p is None for p in r["perturbed"]] == [lacks, False, False, False]
        drifts = [2 * math.tanh(abs(r["logprob"] - p) / 2) for p in r["perturbed"] if p is not None]
        assert r["drift"] == pytest.approx(sum(drifts) / len(drifts), rel=1e-4, abs=1e-6)
    assert not (tmp_path / "state").exists()


def test_a_killed_panel_goes_on_where_it_was(
    go: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (go(tmp_path / "whole") / "panel_tokens.parquet").read_bytes()
    done: list[int] = []
    work = panel.Observer.work

    def dies(self: Any, *args: Any) -> Any:
        if len(done) == 2:
            raise Killed
        done.append(1)
        return work(self, *args)

    monkeypatch.setattr(panel.Observer, "work", dies)
    with pytest.raises(Killed):
        go(tmp_path / "broken")
    next((tmp_path / "broken" / "state").rglob("part-00000.parquet")).write_bytes(b"damaged")
    monkeypatch.setattr(panel.Observer, "work", work)
    out = go(tmp_path / "broken")
    assert (out / "panel_tokens.parquet").read_bytes() == whole
    assert read_json(out / "record.json")["counts"]["resumed_parts"] == 1


def test_a_kind_that_nobody_has_is_said(go: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no valid perturbation of kind counterfactual"):
        go(tmp_path, kinds=["typo_noise", "counterfactual"])


def test_a_lexicon_is_part_of_what_a_panel_stands_on(go: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "lexicon.xml"
    path.write_text('<l><entry><orths><orth><part type="single">albeit</part></orth></orths></entry></l>')
    record = read_json(go(tmp_path, connectives=str(path)) / "record.json")
    assert record["connectives"] == 1
    assert str(path) in record["provenance"]["inputs"]


@pytest.mark.parametrize("kinds", [[], ["paraphrase", "paraphrase"]])
def test_each_kind_once_at_least_one(kinds: list[str]) -> None:
    with pytest.raises(UserError, match="each kind once"):
        spec(kinds=kinds)


def test_an_engine_reads_and_its_gap_is_told(
    go: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine here reads by the policy's own pass and a quarter of a nat too high."""
    plain = read_table("panel_tokens", go(tmp_path / "plain") / "panel_tokens.parquet")
    policies: list[Any] = []
    load = panel.open_policy
    monkeypatch.setattr(panel, "open_policy", lambda *a: policies.append(load(*a)) or policies[-1])

    def forced(prompts: Any, responses: Any) -> list[list[float]]:
        flat = policies[-1].score(prompts, responses, "probe").logprob.detach()
        return [(part + 0.25).tolist() for part in flat.split([len(r) for r in responses])]

    monkeypatch.setattr(panel, "probing", lambda engine, settings: forced)
    out = go(tmp_path / "read")
    table = read_table("panel_tokens", out / "panel_tokens.parquet")
    for a, b in zip(plain.column("perturbed").to_pylist(), table.column("perturbed").to_pylist(), strict=True):
        assert [None if x is None else x + 0.25 for x in a] == pytest.approx(b, abs=1e-5)
    gap = read_json(out / "record.json")["results"]["engine_gap"]
    assert gap["mean"] == pytest.approx(0.25, abs=1e-5) and gap["largest"] == pytest.approx(0.25, abs=1e-5)
    assert "engine_gap" not in read_json(tmp_path / "plain" / "out" / "record.json")["results"]

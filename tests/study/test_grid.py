"""Cells, specs and seeds: what re-runs is decided here."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokencredit.study import Cell, Study, cells, evaluations, load_study, specs, write_specs
from tokencredit.study.files import overlay, read_yaml
from tokencredit.study.grid import length_metrics
from tokencredit.study.seeds import derive
from tokencredit.study.tables import TableError, read_json, read_table, write_json, write_table


@pytest.fixture(scope="module")
def settings(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "config.yaml").read_text())


def touched(settings: dict[str, Any], edit: Callable[[dict[str, Any]], None]) -> set[str]:
    """Names of the specs whose content an edit changes (new ones included)."""
    after = copy.deepcopy(settings)
    edit(after)
    old, new = specs(load_study(settings)), specs(load_study(after))
    return {name for name in new if old.get(name) != new[name]}


def test_a_seed_adds_its_cells_only(settings: dict[str, Any]) -> None:
    got = touched(settings, lambda s: s["grid"]["seeds"].append(3))
    assert got == {"aggregate", "report", *(f"train.scratch.{m}.seed3" for m in ("grpo", "mcpo", "scapo"))}


def test_thresholds_touch_their_method_only(settings: dict[str, Any]) -> None:
    got = touched(settings, lambda s: s["methods"]["mcpo"]["credit"][0].update(low=0.3))
    runs = {f"train.scratch.mcpo.seed{i}" for i in range(3)}
    assert got == {"report", "analysis.fidelity.scratch", *runs}, "fidelity scores every method's credit"


def test_swapping_two_values_is_seen(settings: dict[str, Any]) -> None:
    def swap(s: dict[str, Any]) -> None:
        o = s["training"]["optimizer"]
        o["beta1"], o["beta2"] = o["beta2"], o["beta1"]

    assert "train.scratch.grpo.seed0" in touched(settings, swap)


def test_a_label_or_the_runtime_trains_nothing(settings: dict[str, Any]) -> None:
    def edit(s: dict[str, Any]) -> None:
        s["methods"]["mcpo"]["label"] = "Margin"
        s["runtime"]["save_minutes"] = 9.0

    assert touched(settings, edit) == {"aggregate", "report", "runtime"}


def test_a_benchmark_trains_nothing(settings: dict[str, Any]) -> None:
    def edit(s: dict[str, Any]) -> None:
        s["benchmarks"]["more"] = copy.deepcopy(s["benchmarks"]["easy"])
        s["grid"]["benchmarks"].append("more")

    asked = {"problems.more", "evaluate.more", "analysis.completion.scratch"}  # completions are of every benchmark
    assert touched(settings, edit) == {"aggregate", "report", *asked}


def test_grid(settings: dict[str, Any]) -> None:
    study = load_study(settings)
    assert len(cells(study)) == 9
    assert [c.id for c in cells(study)][:2] == ["scratch.grpo.seed0", "scratch.grpo.seed1"]
    planned = list(evaluations(study))
    assert len(planned) == len(set(planned)) == 3 + 9 * (4 + 2)


def test_specs_are_rewritten_only_when_they_change(settings: dict[str, Any], tmp_path: Path) -> None:
    study = load_study(settings | {"results": str(tmp_path)})
    place = write_specs(study)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "tiny" / "cells").iterdir()}
    write_specs(study)
    assert before == {p: p.stat().st_mtime_ns for p in before}
    changed: Study = study.model_copy(update={"title": "another"})
    write_specs(changed)
    assert {p.name for p in before if p.stat().st_mtime_ns != before[p]} == {"report.json"}
    assert read_json(place.spec("train.scratch.grpo.seed0"))["cell_seed"] == 0


def test_seeds_are_the_first_bytes_of_a_hash() -> None:
    digest = hashlib.sha256(b'[7,"rollout",2]').digest()
    assert derive(7, "rollout", 2) == int.from_bytes(digest[:8], "big") // 2
    assert len({derive(0, "a", i) for i in range(1000)}) == 1000
    assert derive("1") != derive(1)


def row(**more: Any) -> dict[str, Any]:
    return {"model": "m", "method": "g", "seed": 0, "step": 1, "metric": "loss", "value": 0.5, **more}


def test_tables_are_checked_and_deterministic(tmp_path: Path) -> None:
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for path in (a, b):
        write_table("metrics", [row(), row(step=2)], path)
    assert a.read_bytes() == b.read_bytes()
    assert read_table("metrics", a).to_pylist()[1]["step"] == 2
    assert set(tmp_path.iterdir()) == {a, b}
    with pytest.raises(TableError, match="row 0: columns missing or unknown: other"):
        write_table("metrics", [row(other=1)], a)
    assert read_table("metrics", a).num_rows == 2, "a failed write leaves the old file"
    with pytest.raises(TableError, match=r"c\.parquet: no such file"):
        read_table("metrics", tmp_path / "c.parquet")
    with pytest.raises(TableError, match="lacks the column"):
        read_table("problems", a)
    b.write_bytes(b.read_bytes()[:200])
    with pytest.raises(TableError, match="damaged"):
        read_table("metrics", b)


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert write_json(path, {"b": 1, "a": 2}, only_if_changed=True)
    assert not write_json(path, {"a": 2, "b": 1}, only_if_changed=True)
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": 2, "b": 1}
    path.write_text("{")
    with pytest.raises(TableError, match="damaged JSON"):
        read_json(path)


def test_a_control_arm_follows_the_run_of_its_own_model_and_seed(root: Path, settings: dict[str, Any]) -> None:
    study = load_study(overlay(settings, read_yaml(root / "workflow" / "studies" / "length.yaml")))
    wanted = ["results/length/train/scratch/mcpo/seed3/metrics.parquet"]
    assert length_metrics(study, Cell("scratch", "grpo_long", 3)) == wanted
    assert length_metrics(study, Cell("scratch", "grpo", 3)) == []
    assert specs(study)["train.scratch.grpo_long.seed3"]["credit_method"]["length"] == {"like": "mcpo", "strength": 0.5}

"""Every study that ships can be planned, and mistakes are told before any job starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.conftest import ROOT, Folder
from tokencredit.cli import main
from tokencredit.study.files import overlay, read_yaml

STUDIES = sorted((ROOT / "workflow" / "studies").glob("*.yaml"))


@pytest.fixture
def shared_names(tmp_path: Path) -> dict[str, str]:
    """A folder with the names of the real benchmark files and models, so that studies can be planned without them."""
    folder = tmp_path / "shared" / "data"
    folder.mkdir(parents=True)
    for path in STUDIES:
        study = yaml.safe_load(path.read_text())
        for name in study.get("benchmarks", {}):
            (folder / f"{name}.jsonl").touch()
        for model in study.get("models", {}).values():
            if model.get("source", {}).get("kind") == "folder":
                place = Path(model["source"]["path"].replace("${TOKENCREDIT_SHARED}", str(folder.parent)))
                place.mkdir(parents=True, exist_ok=True)
                (place / "config.json").touch()
    return {"TOKENCREDIT_SHARED": str(folder.parent)}


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=lambda p: p.stem)
def test_study_is_planned(study: Path, empty: Folder, shared_names: dict[str, str]) -> None:
    rules = empty.plan(None, "--configfile", str(study), env=shared_names).rules
    assert rules["train"] >= 1
    assert rules["report"] == rules["track"] == 1


def test_studies_are_named_as_their_files() -> None:
    assert [yaml.safe_load(p.read_text())["study"] for p in STUDIES] == [p.stem for p in STUDIES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"training": {"rollots": 3}}, "training.rollots: unknown key; did you mean 'rollouts'?"),
        ({"training": {"rollouts": 0}}, "training.rollouts"),
        ({"training": {"optimizer": {"lr": "1e-5"}}}, "1.0e-5"),
        ({"training": {"updates": 1}}, "updates: 1 makes every ratio exactly 1"),
        ({"training": {"top_p": 0.9}}, "top_p must be 1.0"),
        ({"grid": {"methods": ["grpo", "mcpoo"]}}, "unknown method 'mcpoo'; did you mean 'mcpo'?"),
        ({"models": {"scratch": {"source": {"kind": "scrtch"}}}}, "did you mean 'scratch'?"),
        (
            {
                "benchmarks": {"mine": {"source": {"kind": "jsonl", "path": "/nowhere/mine.jsonl"}}},
                "grid": {"benchmarks": ["mine"]},
            },
            "benchmarks.mine.source.path: /nowhere/mine.jsonl: no such file",
        ),
    ],
)
def test_mistake_stops_before_any_job_with_one_message(config: dict[str, Any], said: str, empty: Folder) -> None:
    done = empty.snakemake("--cores", "1", config=config)
    assert done.code == 1
    assert said in done.text
    assert done.text.count(said) == 1
    assert "Traceback" not in done.text
    assert "Select jobs" not in done.text
    assert not (empty.path / "results").exists()


def test_check_says_what_a_study_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "workflow/studies/smoke.yaml"), "--base", str(ROOT / "config.yaml")]) == 0
    assert "12 runs of 8 steps" in capsys.readouterr().out


def test_check_refuses_what_the_workflow_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("training: {rollots: 3}")
    assert main(["check", str(tmp_path / "bad.yaml"), "--base", str(ROOT / "config.yaml")]) == 2
    assert "did you mean 'rollouts'" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [("a: [1", "line 1"), ("- 1", "must hold settings")])
def test_file_that_is_no_study_is_named(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    assert main(["check", str(tmp_path / "bad.yaml"), "--base", str(ROOT / "config.yaml")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "bad.yaml" in err


def test_a_study_may_replace_a_source_by_another_kind() -> None:
    base = read_yaml(ROOT / "config.yaml")
    merged = overlay(base, {"problems": {"kind": "jsonl", "path": "mine.jsonl"}})
    assert merged["problems"] == {"kind": "jsonl", "path": "mine.jsonl"}
    assert overlay(base, {"problems": {"size": 8}})["problems"] == {**base["problems"], "size": 8}
    assert overlay(base, {}) == base

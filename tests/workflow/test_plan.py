"""What an edit re-runs, by dry runs over a finished study."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import SMALL, Folder, stand_in

pytestmark = pytest.mark.slow


def edited(**changes: Any) -> dict[str, Any]:
    """SMALL with changes; a key is a path with __ between its parts."""
    config = copy.deepcopy(SMALL)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = config
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return config


def trained(jobs: Any) -> set[str]:
    """'method seed' of the training jobs."""
    out = set()
    for job in jobs:
        if job.startswith("train "):
            words = dict(w.split("=") for w in job.removeprefix("train ").split(", "))
            out.add(f"{words['method']} {words['seed']}")
    return out


ENDING = {"aggregate": 1, "report": 1, "track": 1, "all": 1}


def test_finished_study_has_nothing_to_do(small: Folder) -> None:
    done = small.plan(SMALL)
    assert not done.jobs
    assert "Nothing to be done" in done.text


def test_seed_runs_its_cells_alone(small: Folder) -> None:
    done = small.plan(edited(grid__seeds=[0, 1, 2]))
    assert trained(done.jobs) == {"grpo 2", "mcpo 2", "mcpo_wide 2", "scapo 2"}
    assert all("seed=2" in job for job in done.jobs if job.startswith("evaluate"))
    # two benchmarks, both at the end, one of them at step 40 as well
    assert done.rules == {"train": 4, "evaluate": 12, **ENDING}


def test_method_runs_its_cells_alone(small: Folder) -> None:
    methods = [*SMALL["grid"]["methods"], "mcpo_additive"]
    change = edited(grid__methods=methods, methods__mcpo_additive={"credit": [{"kind": "margin", "form": "additive"}]})
    done = small.plan(change)
    assert trained(done.jobs) == {"mcpo_additive 0", "mcpo_additive 1"}
    assert done.rules == {"train": 2, "evaluate": 6, **ENDING}


def test_thresholds_of_mcpo_run_mcpo_alone(small: Folder) -> None:
    done = small.plan(edited(methods__mcpo={"credit": [{"kind": "margin", "low": 0.3, "high": 0.8}]}))
    assert trained(done.jobs) == {"mcpo 0", "mcpo 1"}
    assert done.rules == {"train": 2, "evaluate": 6, **ENDING}


def test_settings_swapped_between_two_methods_run_both(small: Folder) -> None:
    wide = SMALL["methods"]["mcpo_wide"]
    narrow = {"credit": [{"kind": "margin", "low": 0.2, "high": 0.8, "strength": 1.0, "form": "ratio"}]}
    done = small.plan(edited(methods__mcpo=wide, methods__mcpo_wide=narrow))
    assert trained(done.jobs) == {"mcpo 0", "mcpo 1", "mcpo_wide 0", "mcpo_wide 1"}


def test_benchmark_is_built_and_asked_and_nothing_is_trained(small: Folder) -> None:
    done = small.plan(edited(grid__benchmarks=["easy", "noop", "hard"]))
    assert done.rules == {"problems_bench": 1, "overlap": 1, "evaluate": 1 + 4 * 2, **ENDING}
    assert all("benchmark=hard" in job for job in done.jobs if job.startswith("evaluate"))


def test_more_samples_ask_that_benchmark_again(small: Folder) -> None:
    done = small.plan(edited(benchmarks__noop={"samples": 32}))
    assert done.rules == {"evaluate": 1 + 4 * 2, **ENDING}
    assert all("benchmark=noop" in job for job in done.jobs if job.startswith("evaluate"))


def test_semifactuals_concern_the_method_that_uses_them(small: Folder) -> None:
    done = small.plan(edited(semifactuals__counterfactual=True))
    assert trained(done.jobs) == {"scapo 0", "scapo 1"}
    assert done.rules["semifactuals"] == 1


def test_label_makes_the_report_anew(small: Folder) -> None:
    assert small.plan(edited(methods__mcpo={"label": "MCPO (ours)"})).rules == ENDING


@pytest.mark.parametrize("change", [{"save_minutes": 9.0}, {"threads": 2}, {"grader_workers": 2}])
def test_how_work_is_done_re_runs_nothing(small: Folder, change: dict[str, Any]) -> None:
    assert not small.plan(edited(runtime=change)).jobs


def test_touched_files_of_equal_content_re_run_nothing(small: Folder) -> None:
    for path in (small.path / "results" / "small" / "cells").iterdir():
        os.utime(path)
    assert not small.plan(SMALL).jobs


def test_edit_that_is_taken_back_re_runs_nothing(small: Folder) -> None:
    assert small.plan(edited(seed=7)).jobs
    assert not small.plan(SMALL).jobs


def test_analysis_runs_alone(small: Folder) -> None:
    done = small.plan(edited(analyses__panel={"policies": ["base", "mcpo"]}))
    assert done.rules == {"panel": 1, "report": 1, "track": 1, "all": 1}
    again = small.plan(edited(analyses__panel={"policies": ["base"], "count": 7}))
    assert again.rules == {"panel": 1, "report": 1, "track": 1, "all": 1}


def test_changed_local_file_is_seen(tmp_path: Path) -> None:
    questions = tmp_path / "own.jsonl"
    questions.write_text('{"problem": "1+1", "answer": "2"}\n')
    source = {"kind": "jsonl", "path": str(questions)}
    config = edited(
        benchmarks__own={"source": source, "samples": 1},
        grid={"methods": ["grpo"], "seeds": [0], "benchmarks": ["own"], "analyses": []},
    )
    folder = Folder(tmp_path / "w", stand_in(tmp_path / "bin"))
    folder.path.mkdir()
    done = folder.snakemake("--cores", "2", "--scheduler", "greedy", config=config)
    assert done.code == 0, done.text
    os.utime(questions)
    assert not folder.plan(config).jobs
    questions.write_text('{"problem": "1+2", "answer": "3"}\n')
    rules = folder.plan(config).rules
    assert rules["problems_bench"] == 1
    assert "train" not in rules


def test_every_cell_of_the_embedded_study_is_planned(empty: Folder) -> None:
    done = empty.plan()
    # 1 model x 3 methods x 3 seeds; `easy` at 4 steps, two more benchmarks at the last one; all three of the base
    assert done.rules == {
        "problems_train": 1,
        "problems_bench": 3,
        "overlap": 1,
        "semifactuals": 1,
        "base": 1,
        "train": 9,
        "evaluate": 3 + 9 * (4 + 2),
        "panel": 2,
        "filtered": 1,
        "fidelity": 2,
        "completion": 2,
        **ENDING,
    }

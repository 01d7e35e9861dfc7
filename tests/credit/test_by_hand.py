"""`tokencredit credit METHOD BATCH.json`: the worked numbers through the command, and its refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import ROOT
from tokencredit.cli import main

BATCH: dict[str, Any] = {
    "old": [[-0.2, -1.1, -0.05], [-0.7, -4, -0.4]],
    "new": [[-0.1, -0.7, -0.06], [-0.95, -1.5, -0.35]],
    "mask": [[1, 1, 1], [1, 1, 1]],
    "rewards": [1, 0],
    "groups": [0, 0],
    "margin": [[0.9, 0.1, 0.95], [0.55, 0.05, 0.85]],
    "entropy": [[0.1, 0.9, 0.3], [0.2, 1.6, 0.4]],
    "perturbed": [
        [[-0.21, -0.6, -0.05], [-0.68, -3.2, -0.37]],
        [[-0.18, -1.4, -0.045], [-0.7, -5.2, -0.36]],
    ],
    "spans": [
        [{"start": 0, "stop": 2, "drop": 1.6}],
        [{"start": 0, "stop": 1, "drop": 0.8}, {"start": 2, "stop": 3, "drop": 0.2}],
    ],
    "answer_start": [3, 3],
    "limit": 4,
}


def work_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, *more: str, **change: Any) -> Any:
    path = tmp_path / "batch.json"
    values = {k: v for k, v in (copy.deepcopy(BATCH) | change).items() if v is not ...}
    path.write_text(json.dumps(values))
    code = main(["credit", method, str(path), "--base", str(ROOT / "config.yaml"), *more])
    out, err = capsys.readouterr()
    return json.loads(out) if code == 0 else (code, err)


@pytest.mark.parametrize(
    ("method", "params", "loss"),
    [
        ("grpo", [], 0.9989107000453955),
        ("grpo", ["objective.dual=3.0"], 0.173953955326107),
        ("mcpo", [], 1.3644044866851581),
        ("mcpo", ["margin.form=additive"], 1.5389006735090327),
        ("scapo", [], 1.0336850199279106),
        ("gspo", [], 0.4073562224086253),
        ("sapo", [], 0.10285997758447163),
        ("fipo", [], 0.9490439077904401),
        ("dapo", [], 1.256119716215602),
        ("dr_grpo", [], 0.6711590190784176),
        ("entropy", [], 3.8546082544901314),
        ("cf_grpo", [], 0.7224904724852347),
    ],
)
def test_worked_losses(
    method: str, params: list[str], loss: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [x for p in params for x in ("--param", p)]
    assert work_out(tmp_path, capsys, method, *changes)["loss"] == pytest.approx(loss, rel=1e-12)


def test_parts_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got = work_out(tmp_path, capsys, "mcpo_scapo")
    a = 0.7071057811879616
    assert got["advantages"] == pytest.approx([a, -a])
    assert got["token_weights"][1] == pytest.approx([0.9622641509433963, 1.358490566037736, 0.679245283018868])
    # 0.01 times the negative part of the stability of the worked example
    assert got["token_correction"][1] == pytest.approx([0, -0.020174369874121467, 0], abs=1e-12)
    for row in range(2):
        want = [
            got["advantages"][row] * w + c
            for w, c in zip(got["token_weights"][row], got["token_correction"][row], strict=True)
        ]
        assert got["token_advantages"][row] == pytest.approx(want)
    assert "token_correction" not in work_out(tmp_path, capsys, "mcpo")
    assert "token_weights" not in work_out(tmp_path, capsys, "scapo")


def test_gradient_is_the_slope_of_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Central differences through the command itself, for a method without weights that move with the ratio."""
    got = work_out(tmp_path, capsys, "mcpo")["grad"]
    for i in range(2):
        for t in range(3):
            side = []
            for h in (-1e-6, 1e-6):
                new = copy.deepcopy(BATCH["new"])
                new[i][t] += h
                side.append(work_out(tmp_path, capsys, "mcpo", new=new)["loss"])
            assert got[i][t] == pytest.approx((side[1] - side[0]) / 2e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        ("mcpo", {"margin": ...}, "margin: missing; margin credit needs it"),
        ("scapo", {"perturbed": ...}, "perturbed: missing"),
        ("cf_grpo", {"answer_start": ...}, "answer_start: missing"),
        ("grpo", {"old": ...}, "old: missing"),
        ("grpo", {"new": [[0.0], [0.0]]}, "new: must be 2 x 3 like old"),
        ("grpo", {"rewards": [1]}, "rewards: must have 2 entries"),
        ("grpo", {"mask": [[0, 1, 1], [1, 1, 1]]}, "valid tokens must stand first"),
        ("grpo", {"masks": [[1]]}, "masks: unknown key; did you mean 'mask'?"),
        ("scapo", {"perturbed": [[[0.0] * 3]]}, "perturbed[0]: must be 2 x 3"),
        ("cf_grpo", {"spans": [[{"start": 1, "stop": 9, "drop": 0.1}], []]}, "spans[0]: [1, 9) does not lie in"),
        ("grpoo", {}, "did you mean 'grpo'?"),
    ],
)
def test_bad_input_is_one_clear_error(
    method: str, change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = work_out(tmp_path, capsys, method, **change)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("param", ["objective.lo=0.1", "margin.low", "margin.low=0.9", "=3"])
def test_bad_params(param: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = work_out(tmp_path, capsys, "mcpo", "--param", param)
    assert code == 2
    assert "Traceback" not in err

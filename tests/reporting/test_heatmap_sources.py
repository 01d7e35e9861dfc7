"""Which responses the heat maps show, from made-up tables in the real layout."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.fake_results import config
from tokencredit.analysis.plan import Plan, layout, plan
from tokencredit.reporting import heatmap
from tokencredit.reporting.heatmap_sources import Chapter, chapters
from tokencredit.study.config import load_study
from tokencredit.study.grid import Cell, specs
from tokencredit.study.tables import write_json, write_table

REWARDS = {"p0": (0, 0, 0), "p1": (0, 1, 1), "p2": (1, 0, 0), "p3": (1, 1, 0)}  # p0 has nothing to compare


def a_plan() -> Plan:
    return plan(specs(load_study(config()))["aggregate"])


def token_rows(method: str, step: int, salt: int = 0) -> list[dict[str, Any]]:
    """Three responses to each problem; method scales the credit, and scapo alone knows the drift."""
    rows = []
    for group, (problem, rewards) in enumerate(REWARDS.items()):
        for sample, reward in enumerate(rewards):
            advantage = 0.0 if len(set(rewards)) == 1 else (0.7 if reward else -0.7)
            for t in range(3 + sample):
                rows.append(
                    {
                        "step": step, "problem_id": problem, "group": group, "sample": sample, "position": t,
                        "token_id": t + salt, "piece": f" w{t}", "category": "word", "reward": float(reward),
                        "group_advantage": advantage, "credit": advantage * (2 if method == "mcpo" else 1),
                        "logprob": -0.1, "margin": 0.9, "entropy": 0.2, "drift": 0.3 if method == "scapo" else None,
                    }
                )  # fmt: skip
    return rows


def write_tokens(root: Path, method: str, salt: int = 0) -> None:
    rows = [*token_rows(method, 0, salt), *token_rows(method, 48)]
    write_table("tokens", rows, layout(root).train(Cell("tiny", method, 0), "tokens.parquet"))


def titled(found: list[Chapter], start: str) -> Chapter:
    return next(c for c in found if c.title.startswith(start))


def test_the_same_answer_under_every_method(tmp_path: Path) -> None:
    for method in ("grpo", "mcpo", "scapo"):
        write_tokens(tmp_path, method)
    chapter = titled(chapters(a_plan(), tmp_path, "tiny"), "The same answers")
    assert [b.problem for b in chapter.blocks] == ["p1", "p2"], "the first with both rewards; their text is not there"
    for block in chapter.blocks:
        assert [(r.label, r.note.split(",")[0]) for r in block.responses] == [
            (label, outcome) for outcome in ("right", "wrong") for label in ("GRPO", "MCPO", "SCAPO")
        ]
        assert all(t["drift"] == 0.3 for r in block.responses for t in r.tokens), "lent by the method that probed it"
    right = chapter.blocks[0].responses
    assert [r.tokens[0]["credit"] for r in right[:3]] == [0.7, 1.4, 0.7]
    assert [len(r.tokens) for r in right] == [4, 4, 4, 3, 3, 3], "samples 1 and 0"


def test_answers_that_differ_between_methods_are_not_put_side_by_side(tmp_path: Path) -> None:
    write_tokens(tmp_path, "grpo")
    write_tokens(tmp_path, "mcpo", salt=9)
    found = chapters(a_plan(), tmp_path, "tiny")
    assert [c.title for c in found] == ["At the end of training"]
    assert [b.responses[0].method for b in found[0].blocks] == ["grpo", "mcpo"]
    assert all(r.note.startswith("step 48") for b in found[0].blocks for r in b.responses)


def panel(root: Path, policy: str, step: int, correct: dict[str, bool]) -> None:
    folder = root / "analyses" / "look" / "tiny" / policy / "seed0" / f"step{step}"
    rows = [
        {
            "problem_id": p, "position": t, "token_id": t, "piece": "x", "category": "word", "correct": right,
            "logprob": math.log(0.5), "perturbed": [math.log(0.25), None], "drift": 2 / 3, "margin": 0.4, "entropy": 0.6,
        }
        for p, right in correct.items() for t in range(2)
    ]  # fmt: skip
    write_table("panel_tokens", rows, folder / "panel_tokens.parquet")
    write_json(folder / "record.json", {"spec": {"analysis": {"kinds": ["paraphrase", "typo_noise"]}}})


def test_frozen_policies_answer_the_same_problems(tmp_path: Path) -> None:
    panel(tmp_path, "base", 0, {"a": False, "b": False, "c": True, "d": True})
    panel(tmp_path, "grpo", 50, {"b": True, "a": False, "c": True, "d": False})
    panel(tmp_path, "gone", 50, {"a": True})  # left from an earlier grid
    (chapter,) = chapters(a_plan(), tmp_path, "tiny")
    assert [b.problem for b in chapter.blocks] == ["b", "d"], "where the policies differ"
    assert [(r.label, r.note) for r in chapter.blocks[0].responses] == [
        ("Base model", "wrong"),
        ("GRPO, step 50", "right"),
    ]
    first = chapter.blocks[0].responses[0].tokens[0]
    assert first["perturbed"] == {"paraphrase": pytest.approx(math.log(0.25))}, "a kind that is lacking is left out"


def test_effect_and_credit_stand_under_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "analyses" / "fid" / "tiny" / "base" / "seed0" / "step0"
    effects = {("p1", 0): [0.1, 0.0], ("p1", 1): [0.5, -0.4], ("p2", 0): [0.0, 0.3]}
    same = dict.fromkeys(
        (
            "moved",
            "planted",
            "value",
            "value_bound",
            "se",
            "variance",
            "bound",
            "effect_first",
            "effect_second",
            "drawn",
        )
    )
    rows = [
        {
            **same, "problem_id": p, "sample": s, "position": t, "piece": "x", "category": "word", "correct": True,
            "logprob": -0.1, "margin": 0.5, "entropy": 0.1, "drift": None, "effect": e,
        }
        for (p, s), values in effects.items() for t, e in enumerate(values)
    ]  # fmt: skip
    write_table("fidelity_tokens", rows, folder / "fidelity_tokens.parquet")
    credits = [
        {"problem_id": p, "sample": s, "position": t, "method": m, "advantage": 1.0, "credit": 10 * t + s}
        for m in ("grpo", "unknown") for (p, s), values in effects.items() for t in range(len(values))
    ]  # fmt: skip
    write_table("fidelity_credits", credits, folder / "fidelity_credits.parquet")
    (chapter,) = chapters(a_plan(), tmp_path, "tiny")
    effect, grpo = chapter.blocks[0].responses
    assert [t["effect"] for t in effect.tokens] == [0.5, -0.4], "the answer with the largest effects comes first"
    assert effect.stand_in == "effect" and "credit" not in effect.tokens[0]
    assert [t["credit"] for t in grpo.tokens] == [1, 11]
    assert [t["effect"] for t in grpo.tokens] == [0.5, -0.4]


def test_problems_and_their_rewordings_stand_beside_the_answers(tmp_path: Path) -> None:
    write_tokens(tmp_path, "grpo")
    problem = {
        "problem_id": "p1", "source": "", "problem": "How many <b>?", "answer": "1", "answer_kind": "integer",
        "choices": [], "tags": [],
    }  # fmt: skip
    write_table("problems", [problem], layout(tmp_path).problems)
    rewordings = [
        {"problem_id": "p1", "kind": "typo_noise", "text": "Hwo many?", "origin": "rule", "valid": True, "reason": ""},
        {"problem_id": "p1", "kind": "paraphrase", "text": "never", "origin": "rule", "valid": False, "reason": "x"},
    ]
    write_table("semifactuals", rewordings, layout(tmp_path).semifactuals)
    (path,) = heatmap.write(a_plan(), tmp_path, tmp_path)
    page = path.read_text()
    assert path.name == heatmap.names(a_plan())[0] == "heatmaps_tiny.html"
    assert "How many &lt;b&gt;?" in page and "Hwo many?" in page
    assert "never" not in page


def test_a_page_is_written_for_every_model_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    p = plan(specs(load_study(config(models=("tiny", "other"))))["aggregate"])
    paths = heatmap.write(p, tmp_path, tmp_path)
    assert [path.name for path in paths] == heatmap.names(p) == ["heatmaps_tiny.html", "heatmaps_other.html"]
    assert all("nothing to show yet" in path.read_text() for path in paths)

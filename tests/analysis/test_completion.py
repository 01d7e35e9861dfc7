"""The contamination probe: cuts and scores by hand, statistics against published numbers and scipy's, restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from tests.training.conftest import inputs, study  # noqa: F401 (a fixture)
from tokencredit.analysis import completion, run
from tokencredit.analysis.completion import Begun, cut, judge, list_begun, rouge_l
from tokencredit.analysis.completion_results import difference, summarise
from tokencredit.study import load_study, specs
from tokencredit.study.analyses import Completion
from tokencredit.study.config import Runtime
from tokencredit.study.errors import UserError
from tokencredit.study.tables import read_json, read_table, schema, write_table


def begun(text: str = "Ada has 3 pears and buys 4 more. How many?", answer: str = "7") -> Begun:
    parts = cut(text, 0.5)
    assert parts is not None
    return Begun("b", {"problem_id": "p", "answer": answer, "problem": text}, *parts)


def test_the_cut_is_at_the_end_of_a_word_and_loses_nothing() -> None:
    text = "Ada has 3 pears and buys 4 more. How many?"
    for share in (0.2, 0.5, 0.9):
        shown, rest = cut(text, share) or ("", "")
        assert shown + rest == text
        assert len(shown) <= share * len(text)
        assert rest[0] == " "
    assert cut("Oneword", 0.5) is None
    assert cut("... pears", 0.5) is None  # nothing to begin with


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [("abcd", "abcd", 4), ("abcd", "acbd", 3), ("abc", "xyz", 0), ("abcbdab", "bdcaba", 4), ("", "abc", 0)],
)
def test_rouge_l_is_f1_of_the_longest_common_subsequence(one: str, other: str, common: int) -> None:
    want = 0.0 if not common else stats.hmean([common / len(one), common / len(other)])
    assert rouge_l(one, other) == pytest.approx(want)


def test_a_problem_written_to_its_end_is_exact_however_it_goes_on() -> None:
    b = begun()
    assert judge(b, b.rest + " The answer is 7.") == {"rouge_l": 1.0, "exact": True, "answer": True}
    assert judge(b, b.rest.replace(" ", "  ").upper())["exact"]
    other = judge(b, " and eats 1. So 2 are left.")
    assert not other["exact"] and not other["answer"] and other["rouge_l"] < 1


def test_an_answer_that_was_shown_is_no_answer_found() -> None:
    assert judge(begun(answer="4"), " buys 4 more")["answer"]
    assert not judge(begun(answer="3"), " buys 3 more")["answer"]
    assert not judge(begun(answer="7"), " buys 17 more")["answer"]
    assert judge(begun(answer=r"\frac{7}{2}"), r" so $\dfrac{7}{2}$")["answer"]


def test_difference_of_shares_is_newcombes() -> None:
    """Newcombe 1998, table II, method 10: 56/70 - 48/80 and 9/10 - 3/10."""
    for right, n, other, m, low, high in ((56, 70, 48, 80, 0.0524, 0.3339), (9, 10, 3, 10, 0.1705, 0.8090)):
        a, b = np.arange(n) < right, np.arange(m) < other
        d = difference(a, b, share=True)
        assert (d["low"], d["high"]) == pytest.approx((low, high), abs=5e-5)


def test_difference_of_means_is_welchs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(20), rng.random(30) ** 2
    want = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    d = difference(a, b, share=False)
    assert (d["low"], d["high"]) == pytest.approx((want.low, want.high))
    assert difference([0.5], [0.5, 0.7], share=False)["low"] is None


def table(sets: dict[str, Sequence[float]]) -> pa.Table:
    rows = [
        {
            "set": name, "problem_id": f"p{i}", "shown": 5, "rest": "r", "completion": "c", "token_count": 3,
            "finish_reason": "stop", "rouge_l": float(v), "exact": v == 1, "answer": v > 0.5,
        }
        for name, values in sets.items()
        for i, v in enumerate(values)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema("completions"))


def test_sets_stand_against_the_control_that_is_reproduced_most() -> None:
    settings = Completion(kind="completion", problems=("old", "made", "new"), controls=("made", "new"))
    found = summarise(table({"old": [1, 1, 0.2, 0.1], "made": [0.2, 0.1], "new": [1, 0.4]}), settings)
    assert found["sets"]["old"]["exact"]["value"] == 0.5
    assert found["sets"]["old"]["problems"] == 4
    assert found["against"].keys() == {"old"}
    assert found["control"] == "new"
    assert found["against"]["old"]["exact"]["value"] == pytest.approx(0.5 - 0.5)
    assert found["against"]["old"]["rouge_l"]["value"] == pytest.approx(2.3 / 4 - 1.4 / 2)
    assert math.isfinite(found["against"]["old"]["rouge_l"]["low"])


def test_by_default_all_sets_are_asked_and_what_cannot_have_been_read_is_a_control() -> None:
    values = study()
    for name, month in (("old", "2024-02"), ("new", "2026-02"), ("odd", None)):
        dated = {} if month is None else {"published": month}
        values["benchmarks"] |= {name: {"source": {"kind": "jsonl", "path": "own.jsonl"}} | dated}
    values["grid"] |= {"benchmarks": ["b", "old", "new", "odd"], "analyses": ["c"]}
    values["analyses"] = {"c": {"kind": "completion"}}
    for day, controls in ((None, ["b"]), ("2025-04-29", ["b", "new"])):
        values["models"]["m"]["released"] = day
        made = specs(load_study(values))["analysis.c.m"]["analysis"]
        assert (made["problems"], made["controls"]) == (["train", "b", "old", "new", "odd"], controls)


# ---- the stage


class Events:
    def metrics(self, values: dict[str, float], step: int) -> None:
        assert all(isinstance(v, float) for v in values.values())


def spec(**analysis: Any) -> dict[str, Any]:
    values = study()
    settings = {
        "kind": "completion",
        "problems": ["train", "b"],
        "controls": ["b"],
        "max_tokens": 6,
        "shard_problems": 4,
    }
    values["analyses"] = {"c": settings | analysis}
    values["grid"] |= {"analyses": ["c"]}
    return specs(load_study(values))["analysis.c.m"]


def work(root: Path, out: Path, **analysis: Any) -> tuple[dict[str, Any], pa.Table]:
    tables = []
    for name in ("train", "b"):
        tables.append(out.parent / f"{name}.parquet")
        write_table("problems", read_table("problems", root / "problems.parquet"), tables[-1])
    runtime = Runtime(device="cpu")
    run(spec(**analysis), root / "base.json", tables, None, out, out.parent / "state", runtime, Events())
    return read_json(out / "record.json"), read_table("completions", out / "completions.parquet")


def test_every_problem_of_every_set_is_completed(inputs: Path, tmp_path: Path) -> None:  # noqa: F811
    record, made = work(inputs, tmp_path / "out")
    rows = made.to_pylist()
    assert [(r["set"], r["problem_id"]) for r in rows] == [(s, f"p{i}") for s in ("train", "b") for i in range(6)]
    assert rows[0]["rest"] == " one two"[-len(rows[0]["rest"]) :]
    assert record["counts"] == {"problems": 12, "left_out": 0, "resumed_parts": 0}
    assert record["results"]["sets"]["train"] == record["results"]["sets"]["b"]  # the same problems
    assert not (tmp_path / "state").exists()


def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(
    inputs: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work(inputs, tmp_path / "whole")
    done, calls = completion.Writer.work, []

    def killed(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return done(self, *args)

    monkeypatch.setattr(completion.Writer, "work", killed)
    with pytest.raises(KeyboardInterrupt):
        work(inputs, tmp_path / "again")
    monkeypatch.undo()
    record, _ = work(inputs, tmp_path / "again")
    assert record["counts"]["resumed_parts"] == 2
    first, second = (tmp_path / name / "completions.parquet" for name in ("whole", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_mistakes_are_named(inputs: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(UserError, match="'c' is not among problems"):
        spec(controls=["c"])
    with pytest.raises(UserError, match="unknown problem set 'c'"):
        spec(problems=["c"], controls=[])
    with pytest.raises(UserError, match="unknown problem set 'c'"):
        spec(problems=[], controls=["c"])
    settings = Completion(kind="completion", problems=("train",))
    with pytest.raises(UserError, match="not those of its sets"):
        list_begun(settings, [tmp_path / "b.parquet"], 0)
    path = tmp_path / "train.parquet"
    row = {
        "problem_id": "p",
        "source": "",
        "problem": "Word",
        "answer": "1",
        "answer_kind": "integer",
        "choices": [],
        "tags": [],
    }
    write_table("problems", [row], path)
    with pytest.raises(UserError, match="could be shown in part"):
        list_begun(settings, [path], 0)
    panel = {"analysis": {"kind": "panel"}}
    with pytest.raises(UserError, match="reads semifactuals"):
        run(panel, path, [path], None, tmp_path, tmp_path, Runtime(), Events())

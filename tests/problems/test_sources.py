"""Loading and cleaning: nothing lost on the way in, nothing dropped silently."""

import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from tokencredit.problems.cleaning import clean
from tokencredit.problems.sources import read
from tokencredit.study.errors import UserError
from tokencredit.study.sources import FileProblems, ProblemSource

Rows = list[dict[str, Any]]


def source(**settings: Any) -> Any:
    return TypeAdapter(ProblemSource).validate_python(settings)


def jsonl(folder: Path, rows: Rows, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def load(path: Path, seed: int = 0, **settings: Any) -> tuple[Rows, dict[str, Any]]:
    asked = source(kind=settings.pop("kind", "jsonl"), path=str(path), **settings)
    raw = read(asked, path.parent / "cache")
    rows, audit = clean(raw, asked, path.name, seed)
    return rows, audit.as_json()


def problems(answers: list[Any]) -> Rows:
    return [{"id": f"p{i}", "problem": f"Find ${i}+x$.", "answer": a, "source": "s"} for i, a in enumerate(answers)]


BIG = 123456789012345678901234567890


def test_answers_survive_as_written(tmp_path: Path) -> None:
    rows, record = load(jsonl(tmp_path, problems([BIG, "073", 27.0, -4, "1,000"])))
    assert [r["answer"] for r in rows] == [str(BIG), "073", "27", "-4", "1,000"]
    assert {r["answer_kind"] for r in rows} == {"integer"}
    assert record["counts"] == {"rows": 5, "kept": 5}


def test_dates_and_decimals_stay_text(tmp_path: Path) -> None:
    rows, _ = load(jsonl(tmp_path, problems(["2024-01-01", 0.1, "1e3", True])), answer_kind="auto")
    assert [r["answer"] for r in rows][:2] == ["2024-01-01", "0.1"]


def test_parquet_types_become_text(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    table = {
        "question": ["a b", "c d"],
        "answer": [27.0, 12.0],
        "level": [5, 1],
        "when": [datetime.date(2024, 1, 2)] * 2,
    }
    pq.write_table(pa.table(table), path)
    rows, _ = load(path, kind="parquet", columns={"problem": "question"})
    assert [(r["answer"], r["tags"]) for r in rows] == [("27", ["level:5"]), ("12", ["level:1"])]
    dates, _ = load(path, kind="parquet", columns={"problem": "question", "answer": "when"}, answer_kind="expression")
    assert dates[0]["answer"] == "2024-01-02"


def test_fields_inside_columns_and_filters(tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "user", "content": "Find $x$."}], "reward": {"truth": "5"}, "golds": ["$3$", "$4$"],
        "solution": "First \\boxed{1}, then \\boxed{\\frac{2}{3}}.", "trace": "2+2\n#### 4",
    }  # fmt: skip
    path = jsonl(tmp_path, [row])
    found = {}
    for column in ("reward.truth", "golds", "golds.0", "solution|boxed", "trace|hashes"):
        rows, _ = load(path, columns={"problem": "prompt.0.content", "answer": column}, answer_kind="expression")
        found[column] = rows[0]["answer"]
    assert list(found.values()) == ["5", "$3$, $4$", "$3$", "\\frac{2}{3}", "4"]


def test_duplicates_contradictions_and_empties_are_counted(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "problem": "Find $a$.", "answer": "73"},
        {"id": 2, "problem": "Find  $a$. ", "answer": "073"},
        {"id": 3, "problem": "Find $b$.", "answer": "1"},
        {"id": 4, "problem": "Find $b$.", "answer": "2"},
        {"id": 5, "problem": "  ", "answer": "2"},
        {"id": 6, "problem": "Find $c$.", "answer": None},
        {"id": 7, "problem": "Find $d$.", "answer": -1},
    ]
    kept, record = load(jsonl(tmp_path, rows))
    assert [r["source"] for r in kept] == ["set.jsonl#1", "set.jsonl#7"]
    assert record["dropped"] == {
        "duplicate": ["2"], "contradictory_answers": ["3", "4"], "empty_problem": ["5"], "empty_answer": ["6"],
    }  # fmt: skip
    assert record["flagged"] == {"gold_minus_one": ["7"]}
    counts = record["counts"]
    assert counts["rows"] == counts["kept"] + sum(v for k, v in counts.items() if k.startswith("dropped"))


def test_instructions_are_stripped_as_prefix_and_suffix_not_as_characters(tmp_path: Path) -> None:
    before, after = "Solve this. Answer: $A.\n\n", '\n\nPut it after "Answer:".'
    rows, record = load(
        jsonl(tmp_path, [{"id": "a", "problem": f"{before}Answer all: $x$.{after}", "answer": "1"},
                         {"id": "b", "problem": "Bare.", "answer": "2"}]),
        strip_prefix=before, strip_suffix=after,
    )  # fmt: skip
    assert [r["problem"] for r in rows] == ["Answer all: $x$.", "Bare."]
    assert record["flagged"] == {"prefix_absent": ["b"], "suffix_absent": ["b"]}
    with pytest.raises(UserError, match="no problem begins with strip_prefix"):
        load(jsonl(tmp_path, problems(["1", "2"])), strip_prefix="Solve")


def test_language(tmp_path: Path) -> None:
    rows = [{"id": "e", "problem": "Find $x$.", "answer": "1"}, {"id": "z", "problem": "求 $x$ 的值.", "answer": "2"}]
    path = jsonl(tmp_path, rows)
    assert [r["answer"] for r in load(path, language="en")[0]] == ["1"]
    assert [r["answer"] for r in load(path, language="zh")[0]] == ["2"]
    assert load(path, language="en")[1]["dropped"] == {"language": ["z"]}


def test_answer_kind_auto_needs_every_gold_an_integer(tmp_path: Path) -> None:
    assert {r["answer_kind"] for r in load(jsonl(tmp_path, problems(["1", "\\frac{1}{2}"])))[0]} == {"expression"}
    rows = [{"id": i, "problem": f"Which, {i}?", "answer": "B", "choices": ["x", "y"]} for i in range(2)]
    loaded = load(jsonl(tmp_path, rows))[0]
    assert {(r["answer_kind"], tuple(r["choices"])) for r in loaded} == {("choice", ("x", "y"))}
    rows[0]["answer"] = "D"
    with pytest.raises(UserError, match="0: D is none of 2 options"):
        load(jsonl(tmp_path, rows))


def test_golds_that_cannot_be_graded_are_an_error_that_lists_them(tmp_path: Path) -> None:
    path = jsonl(tmp_path, problems(["1", "some sentence of words", "7"]))
    with pytest.raises(UserError, match=r"1 of 3 golds cannot be graded as integer: p1: not an integer"):
        load(path, answer_kind="integer")


@pytest.mark.parametrize(("ungradable", "kept"), [("drop", 2), ("keep", 3)])
def test_ungradable_golds_may_be_dropped_or_kept_by_name(tmp_path: Path, ungradable: str, kept: int) -> None:
    class Lenient(FileProblems):
        ungradable: str = "error"

    path = jsonl(tmp_path, problems(["1", "some sentence of words", "7"]))
    asked = Lenient(kind="jsonl", path=str(path), answer_kind="integer", ungradable=ungradable)
    rows, audit = clean(read(asked, tmp_path), asked, path.name, 0)
    assert len(rows) == kept
    assert (audit.dropped | audit.flagged)["ungradable_gold"] == ["p1"]


def test_a_draw_does_not_depend_on_the_order_and_a_larger_one_extends_it(tmp_path: Path) -> None:
    rows = problems([str(i) for i in range(40)])
    small = load(jsonl(tmp_path, rows), size=5)[0]
    random.Random(1).shuffle(rows)
    assert load(jsonl(tmp_path, rows), size=5)[0] == small
    assert load(jsonl(tmp_path, rows), size=9)[0][:5] == small
    assert load(jsonl(tmp_path, rows), size=5, seed=1)[0] != small
    with pytest.raises(UserError, match="40 usable problems, the study asks for 41"):
        load(jsonl(tmp_path, rows), size=41)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expect_rows": 3}, "2 rows, the study expects 3"),
        (
            {"columns": {"answer": "gold"}},
            "no column 'gold' for the answer; the columns are id, problem, answer, source",
        ),
        ({"columns": {"answer": "answer|last"}}, r"unknown column filter '\|last'"),
        ({"sha256": "00"}, "sha256 is"),
    ],
)
def test_errors_say_what_and_what_to_do(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(jsonl(tmp_path, problems(["1", "2"])), **settings)


def test_missing_damaged_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.jsonl: no such file"):
        load(tmp_path / "nowhere.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(UserError, match=r"bad\.jsonl, line 2: not JSON"):
        load(tmp_path / "bad.jsonl", columns={"problem": "id", "answer": "id"})
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        load(tmp_path / "bad.parquet", kind="parquet")
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no rows"):
        load(tmp_path / "none.jsonl")


def test_paths_hold_environment_variables_and_digests_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path, problems(["1"]))
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    raw = read(source(kind="jsonl", path="${SOME_FOLDER}/set.jsonl", sha256=digest), tmp_path)
    assert (len(raw.rows), raw.files) == (1, [path])


# ---- the hub, by a local folder of the same layout, and offline -------------------------------------


def hub(folder: Path, **settings: Any) -> Any:
    return source(kind="hub", id=str(folder), revision="0" * 40, **settings)


def test_hub_layouts_are_read_by_split_with_answers_as_text(tmp_path: Path) -> None:
    parquet, lines = tmp_path / "one", tmp_path / "two"
    (parquet / "data").mkdir(parents=True)
    for part in (0, 1):
        table = pa.table({"problem": [f"Find ${part}$."], "answer": [part + 70]})
        pq.write_table(table, parquet / "data" / f"train-0000{part}-of-00002.parquet")
    lines.mkdir()
    jsonl(lines, problems([BIG, "073"]), "test.jsonl")
    rows = read(hub(parquet), tmp_path / "cache").rows
    assert [(r["problem"], r["answer"]) for r in rows] == [("Find $0$.", "70"), ("Find $1$.", "71")]
    assert [r["answer"] for r in read(hub(lines, split="test"), tmp_path / "cache").rows] == [str(BIG), "073"]
    with pytest.raises(UserError, match="no split 'train'; it has test"):
        read(hub(lines), tmp_path / "cache")


def test_offline_hub_names_the_set_and_the_remedy_and_needs_no_home(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tokencredit.problems.sources import read
from tokencredit.study.errors import UserError
from tokencredit.study.sources import HubProblems
try:
    read(HubProblems(kind="hub", id="nobody/nothing", revision="0" * 40), Path(sys.argv[1]))
except UserError as error:
    print(error)
"""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache")],
        env=keep | {"HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    assert "nobody/nothing (default, train, revision 000" in done.stdout
    assert "use a local copy" in done.stdout


# ---- real files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "kept", "kind"),
    [
        ("aime_2024", 30, 30, "integer"),
        ("aime_2025", 30, 30, "integer"),
        ("amc_2023", 40, 40, "integer"),
        ("hmmt_feb_2025", 30, 30, "expression"),
        ("dapo_sample_27", 27, 27, "integer"),
        ("dapo_conflicts_24", 24, 0, ""),  # twelve problems with two golds each: none is kept
    ],
)
def test_benchmark_files(shared: Path, tmp_path: Path, name: str, rows: int, kept: int, kind: str) -> None:
    loaded, record = load(shared / "data" / f"{name}.jsonl", expect_rows=rows)
    assert len(loaded) == kept
    assert {r["answer_kind"] for r in loaded} == ({kind} if kind else set())
    assert record["counts"]["rows"] == rows
    assert record["counts"].get("dropped_contradictory_answers", 0) == (24 if name == "dapo_conflicts_24" else 0)

"""The registry: every set's facts, where sets are found, and what real files and replicas of them load as."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tokencredit.cli import main
from tokencredit.problems.loading import Loaded, load
from tokencredit.problems.registry import listing, page
from tokencredit.study import UserError, check_files, load_study, specs
from tokencredit.study.provenance import file_digest
from tokencredit.study.registry import Missing, Registry, entries, resolve
from tokencredit.study.sources import FileProblems, HubProblems, MadeProblems, RegistryProblems, UrlProblems

Rows = list[dict[str, Any]]


def named(name: str, **settings: Any) -> RegistryProblems:
    return RegistryProblems(kind="registry", name=name, **settings)


def loaded(name: str, folder: Path, seed: int = 0, **settings: Any) -> Loaded:
    return load(resolve(named(name, **settings), Registry(folder=str(folder))), seed, folder / ".hub")


# ---- facts ---------------------------------------------------------------------------------------------

SCAPO = {
    "aime_2024": (30, 16), "aime_2025": (30, 16), "aime_2026": (30, 16), "amc_2023": (40, 16), "amc_2024": (45, 16),
    "amc_2025": (42, 16), "hmmt_feb_2025": (30, 16), "hmmt_feb_2026": (33, 16), "brumo_2025": (30, 16),
    "smt_2025": (53, 16), "omni_math_rule": (2821, 1), "minerva": (272, 1), "olympiadbench": (674, 1),
    "noop_aime": (90, 16), "thinkbench_aime": (360, 4), "gpqa_diamond": (198, 1),
}  # fmt: skip
MCPO = ("aime_2024", "aime_2025", "aime_2026", "amc_2023", "hmmt_feb_2025", "brumo_2025")


def test_sets_have_the_papers_sizes_and_samples() -> None:
    found = entries()
    assert {n: (found[n].rows, found[n].samples["scapo"]) for n in SCAPO} == SCAPO
    assert {n for n, e in found.items() if "mcpo" in e.samples} == set(MCPO)
    assert {found[n].samples["mcpo"] for n in MCPO} == {32}


def test_pools_hold_the_problems_of_their_years() -> None:
    for entry in entries().values():
        if entry.made is not None and entry.made.how == "pool":
            assert entry.rows == sum(entries()[part].rows for part in entry.made.of)


def test_what_comes_from_the_hub_is_pinned_by_a_commit() -> None:
    for name, entry in entries().items():
        assert entry.hub is None or re.fullmatch(r"([0-9a-f]{40})?", entry.hub.revision), name
        assert not entry.url or re.search(r"/[0-9a-f]{40}/", entry.url), name


# ---- where a set is ------------------------------------------------------------------------------------


def test_folder_hub_and_mix(tmp_path: Path) -> None:
    (tmp_path / "aime_2024.jsonl").touch()
    (tmp_path / "olympiadbench_674.jsonl").touch()
    both = Registry(folder=str(tmp_path), order=("folder", "hub"))
    here, there = resolve(named("aime_2024"), both), resolve(named("aime_2025"), both)
    assert isinstance(here, FileProblems) and here.path == f"{tmp_path}/aime_2024.jsonl"
    assert isinstance(there, HubProblems) and there.revision == "c94da77eb22bbd6439e62a323bec18493a421302"
    assert isinstance(resolve(named("omni_math_rule"), both), UrlProblems)
    first = resolve(named("aime_2024"), Registry(folder=str(tmp_path), order=("hub", "folder")))
    assert isinstance(first, HubProblems)
    assert isinstance(resolve(named("olympiadbench"), both), FileProblems)


def test_a_made_set_is_resolved_through_its_parts_unless_a_file_takes_its_place(tmp_path: Path) -> None:
    place = Registry(folder=str(tmp_path), order=("folder", "hub"))
    made = resolve(named("noop_aime"), place)
    assert isinstance(made, MadeProblems)
    assert [part.kind for part in made.parts.values()] == ["hub"] * 3
    (tmp_path / "noop_aime.jsonl").touch()
    assert isinstance(resolve(named("noop_aime"), place), FileProblems)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smt_2025", ["smt_2025.jsonl (53 rows)", "MathArena/smt_2025", "registry.order: [folder, hub]"]),
        ("amc_2024", ["put amc_2024.jsonl (45 rows)", "rawsh/2024_AMC12"]),
        ("amc_2025", ["put amc_2025.jsonl (42 rows)", "sonthenguyen/amc12-2025-non-figure", "source.revision"]),
        ("gpqa_diamond", ["gpqa_diamond.csv (198 rows)", "HF_TOKEN"]),
        ("amc_2023_2025", ["amc_2023 is not here"]),
    ],
)
def test_a_missing_set_says_what_it_needs(
    name: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(Missing) as error:
        resolve(named(name), Registry(folder=str(tmp_path)))
    for part in said:
        assert part in str(error.value)


def test_a_gated_set_needs_a_login_and_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    place = Registry(folder=str(tmp_path), order=("hub",))
    with pytest.raises(Missing, match="HF_TOKEN"):
        resolve(named("gpqa_diamond", revision="0" * 40), place)
    monkeypatch.setenv("HF_TOKEN", "x")
    assert isinstance(resolve(named("gpqa_diamond", revision="0" * 40), place), HubProblems)


# ---- studies -------------------------------------------------------------------------------------------


@pytest.fixture
def config(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "config.yaml").read_text())


def study_of(config: dict[str, Any], folder: Path, **benchmarks: Any) -> Any:
    values = config | {"registry": {"folder": str(folder), "protocol": "mcpo"}, "benchmarks": benchmarks}
    return load_study(values | {"grid": config["grid"] | {"benchmarks": list(benchmarks)}})


def test_a_benchmark_named_like_a_set_needs_nothing_else(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "aime_2024.jsonl").touch()
    study = study_of(
        config,
        tmp_path,
        aime_2024=None,
        minerva={"samples": 3},
        again={"source": {"kind": "registry", "name": "aime_2024"}},
    )
    aime, minerva, again = (study.benchmarks[n] for n in ("aime_2024", "minerva", "again"))
    assert (aime.samples, aime.label, aime.tolerance) == (32, "AIME 2024", None)
    assert (minerva.samples, minerva.tolerance) == (3, 0.01)
    assert again == aime
    spec = specs(study)["problems.aime_2024"]["source"]
    assert (spec["kind"], spec["path"], spec["expect_rows"]) == ("jsonl", f"{tmp_path}/aime_2024.jsonl", 30)
    assert load_study(specs(study)["report"]["config"]).benchmarks == study.benchmarks


def test_an_unknown_set_is_named_with_the_nearest(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'aime_2024'"):
        study_of(config, tmp_path, a={"source": {"kind": "registry", "name": "aime_204"}})
    with pytest.raises(UserError, match="source: missing"):
        study_of(config, tmp_path, aime_204={})


def test_missing_sets_and_what_would_still_run_are_named(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "aime_2024.jsonl").touch()
    study = study_of(config, tmp_path, aime_2024={}, smt_2025={}, amc_2025={})
    with pytest.raises(UserError) as error:
        check_files(study)
    text = str(error.value)
    assert "benchmarks.smt_2025.source: smt_2025 is not here" in text
    assert "benchmarks.amc_2025.source: amc_2025 is not here" in text
    assert "would run with grid.benchmarks: [aime_2024]" in text
    assert specs(study)["problems.smt_2025"]["source"]["kind"] == "registry"  # planned for, if not there
    check_files(study_of(config, tmp_path, aime_2024={}))


def test_the_command_lists_every_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmarks", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", shown, re.MULTILINE) for name in entries())
    assert main(["benchmarks", "aime_204"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert all(f"| `{name}` |" in page() for name in entries())


# ---- real files ----------------------------------------------------------------------------------------

# set: answer kind, flagged rows (known defects), usable rows where they differ from the file's
REAL = {
    "aime_2024": ("integer", 0, 30), "aime_2025": ("integer", 0, 30), "aime_2026": ("integer", 0, 30),
    "amc_2023": ("integer", 0, 40), "amc_2022_2023": ("integer", 0, 83), "gsm8k": ("integer", 0, 1319),
    "hmmt_feb_2025": ("expression", 0, 30), "hmmt_feb_2026": ("expression", 3, 33), "hmmt_nov_2025": ("expression", 1, 30),
    "brumo_2025": ("expression", 0, 30), "cmimc_2025": ("expression", 0, 40),
}  # fmt: skip
LARGE = {"math_500": (0, 500), "minerva": (1, 272), "olympiadbench": (2, 674), "omni_math_rule": (12, 2816)}


def check_real(name: str, shared: Path, kind: str, defects: int, usable: int) -> Loaded:
    found = loaded(name, shared / "data")
    assert found.copy == "known"
    assert found.audit.rows == entries()[name].rows
    assert len(found.rows) == usable == len({r["problem_id"] for r in found.rows})
    assert {r["answer_kind"] for r in found.rows} == {kind}
    assert len(found.audit.flagged["known_defect"]) == defects
    assert sum(any(t.startswith("defect:") for t in r["tags"]) for r in found.rows) == defects
    return found


@pytest.mark.parametrize("name", REAL)
def test_real_file(name: str, shared: Path) -> None:
    check_real(name, shared, *REAL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_real_file(name: str, shared: Path) -> None:
    check_real(name, shared, "expression", *LARGE[name])


def test_every_known_copy_has_its_digest(shared: Path) -> None:
    lines = (shared / "data" / "SOURCES.md").read_text().splitlines()
    listed = {
        cells[1]: cells[4]
        for line in lines
        if (cells := [c.strip() for c in line.split("|")])[1:2] != [""] and len(cells) > 5
    }
    for name, entry in entries().items():
        if entry.sha256 and name != "gpqa_diamond":
            source = resolve(named(name), Registry(folder=str(shared / "data")))
            assert isinstance(source, FileProblems)
            assert listed[Path(source.path).name] == entry.sha256 == file_digest(source.path)


def test_padded_and_float_golds_are_integers(shared: Path, tmp_path: Path) -> None:
    golds = [r["answer"] for r in loaded("aime_2024", shared / "data").rows]
    assert any(g.startswith("0") for g in golds) and all(0 <= int(g) <= 999 for g in golds)
    # the hub's form of AMC 2023: other columns, floats
    rows = loaded("amc_2023", shared / "data").rows
    table = {"id": range(40), "question": [r["problem"] for r in rows], "answer": [float(r["answer"]) for r in rows]}
    pq.write_table(pa.table({k: list(v) for k, v in table.items()}), tmp_path / "amc_2023.parquet")
    again = loaded("amc_2023", tmp_path)
    assert [r["answer"] for r in again.rows] == [str(int(r["answer"])) for r in rows]
    assert [r["problem_id"] for r in again.rows] == [r["problem_id"] for r in rows]


@pytest.mark.slow
def test_the_one_tolerance_of_olympiadbench_is_the_rows_own(shared: Path) -> None:
    tagged = [r for r in loaded("olympiadbench", shared / "data").rows if any("tolerance" in t for t in r["tags"])]
    (tag,) = [t for r in tagged for t in r["tags"] if "tolerance" in t]
    assert float(tag.split(":")[1]) == pytest.approx(0.1 / float(tagged[0]["answer"]), rel=1e-4)


def test_a_gold_that_is_no_known_defect_is_an_error(tmp_path: Path) -> None:
    rows = [f'{{"id": {i}, "problem": "Find ${i}+x$.", "answer": "{i}"}}' for i in range(29)]
    lines = [*rows, '{"id": 29, "problem": "Find it.", "answer": "some words in a row"}']
    (tmp_path / "brumo_2025.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match="1 of 30 golds cannot be graded as expression: 29"):
        loaded("brumo_2025", tmp_path)
    (tmp_path / "brumo_2025.jsonl").write_text("\n".join([*rows, '{"id": 28, "problem": "Find it.", "answer": "1"}']))
    with pytest.raises(UserError, match="ids of more than one row: 28"):
        loaded("brumo_2025", tmp_path)
    (tmp_path / "brumo_2025.jsonl").write_text("\n".join(rows))
    with pytest.raises(UserError, match="29 rows, the study expects 30"):
        loaded("brumo_2025", tmp_path)


# ---- DAPO ----------------------------------------------------------------------------------------------

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
BIG = "123456789012345678901234567890"
BLOCK: list[tuple[str, str]] = [
    *((f"Answer the call: find ${i}+x$.", str(i)) for i in range(20)),
    ("Find $0+x$ twice.", "7"), ("Find $0+x$ twice.", "7"), ("Find $0+x$  twice.", "7"),  # one problem, two texts
    ("Find $y$.", "3"), ("Find  $y$.", "-1"),  # a contradiction that white space hides
    ("Find $z$.", "-1"), ("Find a large number.", BIG), ("求 $x$ 的值.", "4"), ("求 $y$ 的值.", "5"),
]  # fmt: skip


def dapo(folder: Path, times: int = 100) -> Path:
    """The hub's form of DAPO-Math-17K: one block of BLOCK, `times` times over."""
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": BEFORE + text + AFTER}],
            "reward_model": {"ground_truth": gold, "style": "rule"},
            "extra_info": {"index": f"row-{i}"},
        }
        for i, (text, gold) in enumerate(BLOCK)
    ]
    path = folder / "dapo-math-17k.parquet"
    pq.write_table(pa.Table.from_pylist(rows * times), path, row_group_size=500)
    return path


def test_dapo_from_its_raw_form(tmp_path: Path) -> None:
    dapo(tmp_path)
    found = loaded("dapo_math_17k", tmp_path, expect_rows=100 * len(BLOCK))
    record = found.as_json()
    assert record["counts"] == {
        "rows": 2900, "kept": 25, "dropped_repeated_row": 2871, "dropped_contradictory_answers": 2, "dropped_duplicate": 2,
        "flagged_gold_minus_one": 1,
    }  # fmt: skip
    assert record["distinct"] == {"rows": 29, "texts": 28, "problems": 26, "contradictory_problems": 1}
    assert "problem_id" in record["key"]
    by_answer = {r["answer"]: r["problem"] for r in found.rows}
    assert by_answer[BIG] == "Find a large number."
    assert not any("Solve the" in text or "own line" in text for text in by_answer.values())
    assert Counter(r["answer_kind"] for r in found.rows) == {"integer": 25}
    assert len(loaded("dapo_math_17k", tmp_path, expect_rows=2900, language="zh").rows) == 2
    assert len(loaded("dapo_math_17k", tmp_path, expect_rows=2900, language="en").rows) == 23
    with pytest.raises(UserError, match="2900 rows, the study expects 1791700 or 17917 or 17398"):
        loaded("dapo_math_17k", tmp_path)


def test_dapo_forms_load_as_the_same_problems(tmp_path: Path) -> None:
    raw, unique = tmp_path / "raw", tmp_path / "unique"
    for folder in (raw, unique):
        folder.mkdir()
    dapo(raw, times=2)
    rows = [{"prompt": text, "solution": gold, "extra_info": {"index": str(i)}} for i, (text, gold) in enumerate(BLOCK)]
    pq.write_table(pa.Table.from_pylist(rows), unique / "dapo_math_17k.parquet")
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(as_line(i, text, gold) for i, (text, gold) in enumerate(BLOCK)))
    one = loaded("dapo_math_17k", raw, expect_rows=58)
    other = loaded("dapo_math_17k", unique, expect_rows=29)
    third = loaded("dapo_math_17k", tmp_path, expect_rows=29, path=str(lines))
    assert (
        [r["problem_id"] for r in one.rows]
        == [r["problem_id"] for r in other.rows]
        == [r["problem_id"] for r in third.rows]
    )
    assert [r["answer"] for r in one.rows] == [r["answer"] for r in third.rows]
    drawn = loaded("dapo_math_17k", raw, expect_rows=58, size=5)
    assert [r["problem_id"] for r in drawn.rows] == [
        r["problem_id"] for r in loaded("dapo_math_17k", unique, expect_rows=29, size=5).rows
    ]


def as_line(i: int, text: str, gold: str) -> str:
    return json.dumps({"id": str(i), "problem": text, "answer": gold})


def test_dapo_real_rows(shared: Path) -> None:
    sample = loaded(
        "dapo_math_17k", shared / "data", path=str(shared / "data" / "dapo_sample_27.jsonl"), expect_rows=27
    )
    assert len(sample.rows) == 27
    conflicts = loaded(
        "dapo_math_17k", shared / "data", path=str(shared / "data" / "dapo_conflicts_24.jsonl"), expect_rows=24
    )
    assert conflicts.rows == []
    assert conflicts.as_json()["distinct"]["contradictory_problems"] == 12


# ---- GPQA ----------------------------------------------------------------------------------------------


def gpqa(folder: Path, questions: int) -> None:
    head = ["Record ID", "Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    with open(folder / "gpqa_diamond.csv", "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(head)
        writer.writerows(
            [
                [f"rec{i}", f"Which, of {i}?\nSay it."] + [f"{i}-{o} " for o in ("right", "x", "y", "z")]
                for i in range(questions)
            ]
        )


def test_gpqa_in_all_orders_has_the_right_letter(tmp_path: Path) -> None:
    gpqa(tmp_path, 198)
    rows = loaded("gpqa_diamond", tmp_path).rows
    assert len(rows) == entries()["gpqa_diamond"].usable == 198 * 24
    assert len({r["problem_id"] for r in rows}) == len(rows)
    for row in rows:
        assert row["choices"][ord(row["answer"]) - 65].endswith("-right")
        assert sorted(c.split("-")[1] for c in row["choices"]) == ["right", "x", "y", "z"]
    assert Counter(r["answer"] for r in rows) == dict.fromkeys("ABCD", 198 * 6)
    by_base = Counter(next(t for t in r["tags"] if t.startswith("base:")) for r in rows)
    assert set(by_base.values()) == {24} and len(by_base) == 198


def test_fewer_orders_are_drawn_by_the_seed(tmp_path: Path) -> None:
    gpqa(tmp_path, 198)
    source = resolve(named("gpqa_diamond"), Registry(folder=str(tmp_path)))

    def letters(seed: int, orders: int) -> list[str]:
        rows = load(source.model_copy(update={"orders": orders}), seed, tmp_path).rows
        return ["".join(r["choices"]) for r in rows]

    assert len(letters(0, 1)) == 198
    assert letters(0, 1) == letters(0, 1) != letters(1, 1)
    assert letters(0, 3)[::3] == letters(0, 1)


def test_the_listing_names_files(shared: Path) -> None:
    lines = list(listing(str(shared / "data")))
    assert next(line for line in lines if line.startswith("minerva ")).endswith("minerva_272.jsonl")
    assert any(line.startswith("  smt_2025 is not here") for line in lines)

"""Work in parts: what is done stays done, what is damaged or does not fit is done again, and rows are read singly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokencredit.study.parts import chunked, row_parts, table_parts
from tokencredit.study.tables import TableError, read_row, write_table


def rows_of(chunk: Any) -> list[dict[str, Any]]:
    empty = {"seed": 1, "prompt_hash": "", "text": "", "token_count": 1, "finish_reason": "stop", "extracted": None}
    verdict = {"correct": True, "correct_library": None, "status": "ok"}
    return [{"problem_id": f"p{i}", "sample": i, **empty, **verdict} for i in chunk]


def note(seen: list[list[int]]) -> Callable[..., list[dict[str, Any]]]:
    def work(chunk: Any, progress: Any) -> list[dict[str, Any]]:
        seen.append(list(chunk))
        return rows_of(chunk)

    return work


def test_only_what_is_not_there_is_done(tmp_path: Path) -> None:
    first: list[list[int]] = []
    made = table_parts("samples", tmp_path)
    made.run(chunked(range(7), 3), note(first), "label", "sample")
    assert first == [[0, 1, 2], [3, 4, 5], [6]] and made.resumed == 0
    (tmp_path / "part-00001.parquet").write_bytes(b"damaged")
    again: list[list[int]] = []
    parts = table_parts("samples", tmp_path)
    tables = parts.run(chunked(range(7), 3), note(again), "label", "sample")
    assert again == [[3, 4, 5]] and parts.resumed == 2
    assert [r for t in tables for r in t.column("sample").to_pylist()] == list(range(7))


def test_a_part_of_another_size_is_done_again(tmp_path: Path) -> None:
    table_parts("samples", tmp_path).run([range(4)], note([]), "label", "sample")
    seen: list[list[int]] = []
    table_parts("samples", tmp_path).run([range(5)], note(seen), "label", "sample")
    assert seen == [[0, 1, 2, 3, 4]]


def test_objects_with_rows_have_names_of_their_own(tmp_path: Path) -> None:
    parts = row_parts(tmp_path)
    for name in ("one", "two"):
        found = parts.run(["ab", "c"], lambda c, p, n=name: {"rows": list(c), "of": n}, "label", "row", name)
        assert found == [{"rows": ["a", "b"], "of": name}, {"rows": ["c"], "of": name}]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{n}-0000{i}.json" for n in ("one", "two") for i in (0, 1)]


@pytest.mark.parametrize("index", [0, 4095, 4096, 9999])
def test_one_row_is_read_by_its_place(tmp_path: Path, index: int) -> None:
    path = write_table("samples", rows_of(range(10_000)), tmp_path / "samples.parquet")
    assert read_row(path, index)["problem_id"] == f"p{index}"


def test_a_row_that_is_not_there(tmp_path: Path) -> None:
    path = write_table("samples", rows_of(range(3)), tmp_path / "samples.parquet")
    with pytest.raises(IndexError, match="3 rows, asked for row 3"):
        read_row(path, 3)
    path.write_bytes(b"PAR1 damaged")
    with pytest.raises(TableError, match="damaged"):
        read_row(path, 0)

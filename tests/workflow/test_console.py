"""What a job shows on a shared terminal, and what stands in its log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from tokencredit.console import Console


def test_lines_go_to_the_terminal_labelled_and_to_the_log_plain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Console(tmp_path / "log" / "a.log", "train a"):
        print("first", file=sys.stderr)
        sys.stderr.write("sec")
        sys.stderr.write("ond\n\n")
        sys.stderr.write("unfinished")
    assert capsys.readouterr().err == "[train a] first\n[train a] second\n[train a] unfinished\n"
    assert (tmp_path / "log" / "a.log").read_text() == "first\nsecond\nunfinished\n"


def test_a_bar_is_a_few_lines_and_its_end_is_always_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Console(tmp_path / "a.log", "a", every=1000):
        for _ in tqdm(range(500), desc="work", mininterval=0):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 2
    assert "500/500" in lines[-1]


def test_a_bar_shows_while_it_runs(tmp_path: Path) -> None:
    with Console(tmp_path / "a.log", "a", every=0), tqdm(total=4, mininterval=0) as bar:
        for n in range(3):
            bar.update()
            assert f"{n}/4" in (tmp_path / "a.log").read_text()


def test_colours_do_not_reach_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Console(tmp_path / "a.log", "a"):
        print("\x1b[31mred\x1b[0m", file=sys.stderr)
    assert (tmp_path / "a.log").read_text() == "red\n"
    assert "\x1b" not in capsys.readouterr().err


def test_a_second_attempt_is_appended(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with Console(tmp_path / "a.log", "a"):
            print(text, file=sys.stderr)
    assert (tmp_path / "a.log").read_text() == "one\ntwo\n"


def test_stderr_comes_back_after_an_error(tmp_path: Path) -> None:
    before = sys.stderr
    with pytest.raises(ValueError), Console(tmp_path / "a.log", "a"):
        raise ValueError
    assert sys.stderr is before

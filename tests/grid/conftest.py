"""A SLURM of shell scripts: each command prints a file and notes how it was called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class FakeSlurm:
    """Commands on the path; `says` sets what one prints, None makes it fail."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def says(self, name: str, text: str | None = "", only: str = "") -> None:
        """`only`: a word that must be among the arguments, or the command fails."""
        body = f"cat <<'END'\n{text}\nEND\n" if text is not None else "exit 1\n"
        if only:
            body = f'case "$*" in *{only}*) ;; *) exit 1 ;; esac\n{body}'
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/calls\n{body}')
        program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return fake

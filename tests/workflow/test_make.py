"""`make env`: made once, mended when it is broken. A stand-in for Python counts what is asked of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT

PYTHON = """#!/bin/sh
echo "system $*" >> "$LOG"
case "$*" in
  *"-m venv"*)
    for folder; do :; done
    mkdir -p "$folder/bin"
    cat > "$folder/bin/python" <<'END'
#!/bin/sh
case "$*" in
  "-c print(1)") echo 1 ;;
  *"-m pip"*) echo "pip $*" >> "$LOG"; exit "${PIP_EXIT:-0}" ;;
esac
END
    chmod +x "$folder/bin/python" ;;
esac
"""


class Checkout:
    """A folder with the Makefile, and how often it made the environment and installed into it."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "envs").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "envs/cpu.lock.txt", "envs/dev.lock.txt"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "py").write_text(PYTHON)
        (folder / "py").chmod(0o755)

    def make(self, *targets: str, **env: str) -> tuple[int, int, int]:
        """Returns exit code, environments made, calls of pip."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            ["make", *targets, "PYTHON=./py"],
            cwd=self.folder,
            env={**os.environ, "LOG": str(log), **env},
            capture_output=True,
            check=False,
        )
        lines = log.read_text().splitlines() if log.exists() else []
        return done.returncode, sum("-m venv" in x for x in lines), sum(x.startswith("pip") for x in lines)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "one")


def later(path: Path) -> None:
    """Make `path` newer than everything made so far."""
    os.utime(path, (time.time() + 5,) * 2)


def test_made_once(checkout: Checkout) -> None:
    assert checkout.make("env") == (0, 1, 2)
    assert checkout.make("env") == (0, 0, 0)
    assert checkout.make("dev") == (0, 0, 1)
    assert checkout.make("dev") == (0, 0, 0)


def test_half_made_environment_is_made_again(checkout: Checkout) -> None:
    code, made, _ = checkout.make("env", PIP_EXIT="1")
    assert (code != 0, made) == (True, 1)
    assert checkout.make("env") == (0, 1, 2)


def test_changed_lock_installs_into_what_is_there(checkout: Checkout) -> None:
    checkout.make("env")
    later(checkout.folder / "envs" / "cpu.lock.txt")
    code, made, installed = checkout.make("env")
    assert (code, made, installed) == (0, 0, 2)


def test_moved_folder_is_made_again(checkout: Checkout, tmp_path: Path) -> None:
    checkout.make("env")
    checkout.folder = checkout.folder.rename(tmp_path / "two")
    assert checkout.make("env") == (0, 1, 2)


def test_lost_interpreter_is_made_again(checkout: Checkout) -> None:
    checkout.make("env")
    (checkout.folder / ".venv" / "bin" / "python").unlink()
    assert checkout.make("env") == (0, 1, 2)

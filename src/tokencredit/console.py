"""What a job shows: its lines on the terminal under its name, and the same lines in its log file.

Several jobs share one terminal, so a progress bar that redraws itself in place cannot be passed on as it is: of
its redraws one line every few seconds is printed, and the last one always.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

EVERY = 10.0  # seconds between two lines of one progress bar
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Console(io.TextIOBase):
    """Stands in for sys.stderr inside `with`: whole lines, labelled, to the real stderr and to a log file."""

    def __init__(self, log: Path | str, label: str, every: float = EVERY):
        self._path, self._label, self._every = Path(log), label, every
        self._terminal: TextIO = sys.stderr
        self._log: TextIO | None = None
        self._line, self._shown = "", 0.0
        self._lock = threading.RLock()

    def __enter__(self) -> Console:
        with contextlib.suppress(OSError):  # where it cannot be written, the terminal has to do
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._log = open(self._path, "a", encoding="utf-8")
        self._terminal, sys.stderr = sys.stderr, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._line.strip():
                self._emit(self._line)
            self._line = ""
            sys.stderr = self._terminal
            self._close()

    def write(self, text: str) -> int:
        with self._lock:
            for part in re.split(r"([\r\n])", text):
                if part == "\n":
                    if self._line.strip():
                        self._emit(self._line)
                    self._line = ""
                elif part == "\r":
                    if self._line.strip() and time.monotonic() - self._shown >= self._every:
                        self._emit(self._line)
                        self._shown = time.monotonic()
                    self._line = ""
                else:
                    self._line += part
        return len(text)

    def _emit(self, line: str) -> None:
        line = ESCAPES.sub("", line).rstrip()
        self._terminal.write(f"[{self._label}] {line}\n")
        self._terminal.flush()
        if self._log:
            try:
                self._log.write(f"{line}\n")
                self._log.flush()
            except OSError:  # a full disk must not hide what is being said about it
                self._close()

    def _close(self) -> None:
        if self._log:
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    def flush(self) -> None:
        self._terminal.flush()

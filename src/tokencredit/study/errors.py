"""The two errors of the house."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user can mend: says what, where, and what to do. The CLI prints it without a traceback
    and leaves with exit code 2 (not to be retried)."""


class GoOn(SystemExit):
    """Saved, and asked to leave (signal or wall-time budget): exit code 85, run the job again to go on."""

    def __init__(self) -> None:
        super().__init__(85)

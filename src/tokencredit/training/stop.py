"""Leaving on request: SIGTERM (a scheduler's warning) and the wall-time budget."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType


class Interrupted(BaseException):
    """Raised out of work that can be thrown away and done again (sampling, grading, scoring)."""


class StopWatch:
    """Notes SIGTERM and the wall-time budget.

    `wanted` says that the run should save and leave at the next rollout boundary. Inside `disposable()` a SIGTERM
    interrupts at once: no weight has changed since the boundary, so nothing is lost, and a scheduler's grace time
    is met even where a rollout takes minutes.
    """

    def __init__(self, wall_minutes: float | None):
        self.deadline = time.monotonic() + wall_minutes * 60 if wall_minutes else None
        self.asked = False
        self.longest = 0.0  # seconds of the longest rollout step so far
        self._disposable = False

    def __enter__(self) -> StopWatch:
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._disposable:
            self._disposable = False  # once: a second signal must not break into the saving
            raise Interrupted

    @property
    def wanted(self) -> bool:
        """Asked to leave, or the next step would pass the budget. One step is always done, or a job with too short
        a budget would never get anywhere."""
        late = self.deadline is not None and time.monotonic() + 1.5 * self.longest > self.deadline
        return self.asked or (late and self.longest > 0)

    @contextlib.contextmanager
    def disposable(self) -> Iterator[None]:
        self._disposable = True
        try:
            if self.asked:  # looked at when a signal would interrupt already, so that none falls in between
                raise Interrupted
            yield
        finally:
            self._disposable = False


class timed:
    """Adds the seconds of its block to `clock[phase]`."""

    def __init__(self, clock: dict[str, float], phase: str):
        self.clock, self.phase = clock, phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.clock[self.phase] = self.clock.get(self.phase, 0.0) + time.perf_counter() - self.start

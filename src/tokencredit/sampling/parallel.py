"""Copies of one model in processes of their own, each on its own GPUs: a batch is split over them.

Nothing here imports torch: a copy's devices are named in its environment before it does.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tokencredit.sampling.types import Completion, Engine, Params, Request
from tokencredit.study.errors import UserError

VARIABLE = "CUDA_VISIBLE_DEVICES"


class ParallelEngine:
    """open: called in each process, with `arguments`, to make its engine. devices: of each copy; None: not chosen.

    Copies get neighbouring requests, as many each as can be; results are those of one engine up to float rounding
    (sampling/types.py). A copy's UserError is raised here; any other error, or its end, is a RuntimeError.
    """

    def __init__(
        self,
        open: Callable[..., Engine],
        arguments: Mapping[str, Any],
        devices: Sequence[Sequence[str] | None],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for own in devices:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, open, dict(arguments), own), daemon=True)
            process.start()
            there.close()  # of this process: else a copy's end would not be seen
            self.pipes.append(here)
            self.processes.append(process)
        try:
            for i in range(len(self.pipes)):
                self._receive(i)
        except BaseException:
            self.close()
            raise

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        """One completion per request, in the requests' order."""
        parts = split(requests, len(self.pipes))
        for pipe, part in zip(self.pipes, parts, strict=True):
            pipe.send((part, params))
        # every copy is heard before an error is raised, so that the next call meets no old answer
        answers = [self._answer(i) for i in range(len(self.pipes))]
        return [completion for i, answer in enumerate(answers) for completion in self._checked(i, answer)]

    def update(self, model: Any) -> None:
        raise UserError("copies of an engine take no weights: they are for evaluation")

    def sleep(self) -> None:
        """Nothing is given back before close()."""

    def close(self) -> None:
        """End the copies."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()

    def _receive(self, i: int) -> Any:
        return self._checked(i, self._answer(i))

    def _answer(self, i: int) -> tuple[str, Any]:
        try:
            answer: tuple[str, Any] = self.pipes[i].recv()
        except (EOFError, ConnectionError):
            self.processes[i].join(timeout=5)
            return "died", f"it ended with exit code {self.processes[i].exitcode}"
        return answer

    def _checked(self, i: int, answer: tuple[str, Any]) -> Any:
        kind, value = answer
        if kind == "user":
            raise UserError(value)
        if kind != "done":
            raise RuntimeError(f"copy {i} of the engine failed: {value}")
        return value


def split(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Contiguous parts whose sizes differ by one at most.

    >>> split("abcde", 3)
    ['ab', 'cd', 'e']
    """
    size, more = divmod(len(items), parts)
    starts = [i * size + min(i, more) for i in range(parts + 1)]
    return [items[a:b] for a, b in itertools.pairwise(starts)]


def _work(pipe: Any, open: Callable[..., Engine], arguments: dict[str, Any], own: Sequence[str] | None) -> None:
    """A copy's life: make the engine, then answer until the pipe is closed."""
    if own is not None:
        os.environ[VARIABLE] = ",".join(own)
    made: list[Engine] = []
    _answer(pipe, lambda: made.append(open(**arguments)))
    while made:
        try:
            requests, params = pipe.recv()
        except (EOFError, ConnectionError):
            return
        _answer(pipe, partial(made[0].generate, requests, params))


def _answer(pipe: Any, work: Callable[[], Any]) -> None:
    try:
        answer = "done", work()
    except UserError as error:
        answer = "user", str(error)
    except Exception:
        answer = "failed", traceback.format_exc()
    pipe.send(answer)

"""What every engine takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokencredit.study.errors import UserError


class Unsupported(UserError):
    """An engine cannot run this model; says why. `make_engine(kind="auto")` then takes the next engine."""


@dataclass(frozen=True)
class Request:
    """One sample. Requests with equal prompts share the prompt's forward pass."""

    prompt: tuple[int, ...]
    seed: int  # 0 <= seed < 2**64; decides every draw of this sample


@dataclass(frozen=True)
class Params:
    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    eos: tuple[int, ...] = ()
    suppress: tuple[int, ...] = ()  # ids that are never drawn

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"sampling: max_tokens is {self.max_tokens}, must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"sampling: temperature is {self.temperature}, must be 0 (greedy) or positive")
        if not 0 < self.top_p <= 1:
            raise UserError(f"sampling: top_p is {self.top_p}, must lie in (0, 1]")


@dataclass(frozen=True)
class Completion:
    tokens: tuple[int, ...]
    finish: str  # "stop": the last token is an EOS id | "length"
    logprobs: tuple[float, ...]
    """Of each token, at the temperature (1 where greedy), without suppressed ids, before top-p (nan: not known)."""


class Engine(Protocol):
    """Samples from one model whose weights can be replaced.

    A sample depends on its own prompt and seed alone, except for float rounding: matrix products round differently
    in batches of other sizes, and where two tokens' boundaries are that close to the drawn number another token
    may come out. Equal calls on one machine are bit-identical.
    """

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        """One completion per request, in the requests' order."""
        ...

    def update(self, model: Any) -> None:
        """Take over the current weights of `model` (LoRA merged into a copy; `model` is not changed)."""
        ...

    def sleep(self) -> None:
        """Give memory back until the next call, where the engine holds much of it and can."""
        ...


def check_requests(requests: Sequence[Request], vocab: int) -> None:
    """Raises UserError for an empty prompt or ids outside the vocabulary."""
    for prompt in {r.prompt for r in requests}:
        if not prompt:
            raise UserError("sampling: a prompt has no tokens; give it at least a beginning-of-sequence token")
        if min(prompt) < 0 or max(prompt) >= vocab:
            raise UserError(f"sampling: a prompt holds ids outside 0..{vocab - 1}: other tokenizer than model?")

r"""Find the answer a response commits to: the content of its last balanced \boxed{...}.

Nothing outside a box is ever read. A box is `\boxed`, optional white space, `{`, and text up to the matching `}`,
where an escaped brace (`\{`, `\}`) does not count. `\boxed` without a brace is prose about boxes, and \fbox is not an
answer. Among nested boxes the innermost opens last and therefore counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OK, NO_BOX, UNCLOSED = "ok", "no_box", "unclosed"

_OPEN = re.compile(r"\\boxed\s*\{")
_TOKEN = re.compile(r"\\boxed\s*\{|\\(?!\\boxed\s*\{).|[{}]", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class Box:
    """What was found: the text between the braces (empty unless status is "ok") and ok, no_box or unclosed."""

    text: str
    status: str


def last_box(response: str, truncated: bool = False) -> Box:
    r"""The last balanced box of `response`, in time linear in its length.

    A response that was cut off (`truncated`) inside a box it had begun is unclosed, whatever it boxed before: its final
    answer is unknown. One that ended by itself keeps its last balanced box.

    >>> last_box(r"\boxed{1} or \boxed{\frac{2}{3}}").text
    '\\frac{2}{3}'
    """
    start = _last_open(response)
    if start is None:
        return Box("", NO_BOX)
    end = _matching_brace(response, start)
    if end is not None:
        return Box(response[start:end], OK)
    if truncated:
        return Box("", UNCLOSED)
    closed = _last_closed(response)
    return Box("", UNCLOSED) if closed is None else Box(response[closed[0] : closed[1]], OK)


def _last_open(text: str) -> int | None:
    """Index after the `{` of the box that opens last; None if there is none."""
    at = text.rfind("\\boxed")
    while at >= 0:
        match = _OPEN.match(text, at)
        if match:
            return match.end()
        at = text.rfind("\\boxed", 0, at)
    return None


def _matching_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the group whose content starts at `start`; None if it stays open."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def _last_closed(text: str) -> tuple[int, int] | None:
    """Content span of the balanced box that opens last, found in one pass (hostile texts open thousands)."""
    stack: list[tuple[bool, int]] = []
    best: tuple[int, int] | None = None
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "}":
            if stack:
                is_box, start = stack.pop()
                if is_box and (best is None or start > best[0]):
                    best = (start, match.start())
        elif token == "{" or token.startswith("\\boxed"):
            stack.append((token != "{", match.end()))
    return best

"""Numbers and sentences as a reader sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokencredit.evaluation.compare import Comparison

MINUS = "\N{MINUS SIGN}"


def fixed(value: float | None, digits: int = 1, scale: float = 100.0) -> str:
    """A share as percent with a true minus sign; an en dash where it is missing. -0.0 reads as 0.0.

    >>> fixed(0.1234), fixed(-0.5), fixed(None), fixed(-0.0001)
    ('12.3', '−50.0', '–', '0.0')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value * scale:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", MINUS)


def signed(value: float | None, digits: int = 1, scale: float = 100.0) -> str:
    """A difference in points with its sign.

    >>> signed(0.0123), signed(-0.0123), signed(0.0)
    ('+1.2', '−1.2', '0.0')
    """
    text = fixed(value, digits, scale)
    return text if text in ("–", fixed(0.0, digits)) or text.startswith(MINUS) else "+" + text


def interval(r: Comparison, digits: int = 1, scale: float = 100.0) -> str:
    """'−0.2 to +8.8', or nothing where there is no interval."""
    if r.low is None or r.high is None:
        return ""
    return f"{signed(r.low, digits, scale)} to {signed(r.high, digits, scale)}"


def seeds(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def duration(seconds: float | None) -> str:
    """The two largest units that matter.

    >>> duration(0.42), duration(59.6), duration(754), duration(100000), duration(None)
    ('0.4 s', '1 min', '12 min 34 s', '1 d 3 h', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])

"""What a model can have read: the months in which problems were first public against its day of release."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

GROUPS = ("before", "after", "both", "made", "unknown")
UNSEEN = ("after", "made")  # groups whose problems the model cannot have read


def group_of(published: Sequence[str], released: date | None, synthetic: bool) -> str:
    """The group of a problem set for a model released on that day.

    before: no later than the release's month, may have been read; after: later; both: some of either (years of a
    contest, pooled); made: synthetic, made by this project; unknown: a month or the day is not known.
    """
    if not published:
        return "made" if synthetic else "unknown"
    if released is None:
        return "unknown"
    later = [month > f"{released:%Y-%m}" for month in published]
    return "after" if all(later) else "both" if any(later) else "before"

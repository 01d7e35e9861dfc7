"""Snakemake's default rate limit is taken away, a user's own stays."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from snakemake.settings.types import MaxJobsPerTimespan, SchedulingSettings

from tokencredit.grid.runs import unlimited


@pytest.mark.parametrize(("given", "stays"), [("100/1s", False), ("99/1s", True), ("100/1m", True)])
def test_only_the_default_limit_is_taken_away(given: str, stays: bool) -> None:
    settings = SchedulingSettings(max_jobs_per_timespan=MaxJobsPerTimespan.parse_choice(given))
    unlimited(settings)
    assert (settings.max_jobs_per_timespan is not None) == stays


def test_the_default_is_still_what_is_meant() -> None:
    """Else the check above would pass and nothing be taken away."""
    from snakemake.cli import get_argument_parser

    limit = get_argument_parser().parse_args([]).max_jobs_per_timespan
    settings = SimpleNamespace(max_jobs_per_timespan=limit)
    unlimited(settings)
    assert settings.max_jobs_per_timespan is None


def test_nothing_to_take() -> None:
    unlimited(None)
    unlimited(SchedulingSettings())

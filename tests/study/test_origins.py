"""Who writes the semifactuals: a tagged setting, of which `rules` alone needs no more than its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokencredit.study.base import parse
from tokencredit.study.config import Semifactuals
from tokencredit.study.errors import UserError

LLM = {"kind": "llm", "base_url": "http://localhost:8000/v1", "model": "m"}


def test_rules_are_the_default_and_their_spec_stays_as_short_as_it_was() -> None:
    for given in ({}, {"origin": "rules"}, {"origin": {"kind": "rules"}}):
        settings = parse(Semifactuals, given)
        assert settings.model_dump(mode="json")["origin"] == "rules"
        assert settings.files == []


def test_what_is_resolved_reads_the_same_again() -> None:
    for origin in (LLM, {"kind": "import", "path": "a.csv", "columns": {"id": "uid"}}, "rules"):
        settings = parse(Semifactuals, {"origin": origin})
        assert parse(Semifactuals, settings.model_dump(mode="json")) == settings


def test_files_are_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEXTS", str(tmp_path))
    assert parse(Semifactuals, {"origin": {"kind": "import", "path": "${TEXTS}/a.csv"}}).files == [f"{tmp_path}/a.csv"]


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        ("rule", "origin.kind: unknown kind 'rule'; did you mean 'rules'?"),
        ({"kind": "lmm"}, "origin.kind: unknown kind 'lmm'; did you mean 'llm'?"),
        (LLM | {"modle": "m"}, "unknown key; did you mean 'model'?"),
        ({"kind": "llm", "model": "m"}, "base_url: missing"),
        (LLM | {"novelty": 2.0}, "novelty: Input should be less than or equal to 1"),
        (LLM | {"concurrency": 0}, "concurrency: Input should be greater than or equal to 1"),
        (LLM | {"unanswered": "ignore"}, "'ignore' is not one of error, skip"),
        ({"kind": "import"}, "path: missing"),
    ],
)
def test_mistakes_are_named(origin: Any, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Semifactuals, {"origin": origin})
    assert reason in str(caught.value)

"""The section on drift and margins: what stands in it, from made-up records."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.test_panel_results import panel, table
from tests.reporting.fake_results import config as fake_config
from tests.reporting.test_page import Page
from tokencredit.analysis.panel_results import summarise
from tokencredit.problems.categories import CATEGORIES
from tokencredit.reporting.panel import section
from tokencredit.reporting.sections import Entry, sections
from tokencredit.study.tables import write_json

KINDS = ("paraphrase", "typo_noise")


def record(rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    results = summarise(table(rows or panel(0, 40)), KINDS, seed=1)
    return {"results": results, "connectives": 84, "spec": {"analysis": {"kinds": list(KINDS), "connectives": None}}}


def entries(root: Path, *records: dict[str, Any] | None) -> list[Entry]:
    found = []
    for i, content in enumerate(records):
        folder = root / f"policy{i}" / "seed0" / "step0"
        if content is not None:
            write_json(folder / "record.json", content)
        found.append(Entry("look", "Look", "m", f"Policy {i}", 0, 10 * i, folder))
    return found


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_every_category_stands_beside_the_published_one(tmp_path: Path) -> None:
    found = section(entries(tmp_path, record()), tmp_path / "figures")
    text = text_of(found.html)
    assert all(category in text for category in CATEGORIES)
    assert "0.0450 2.74" in text, "published: reflection marker"
    assert "870,586 tokens of another model" in text
    assert [p.name for p in found.files] == [f"analysis_panel_look_m_policy0.{kind}" for kind in ("svg", "png", "pdf")]
    assert all(p.exists() for p in found.files)
    page = Page(found.html)  # well nested
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 1


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    text = text_of(section(entries(tmp_path, record(), None), tmp_path / "figures").html)
    assert "Not run yet: Policy 1, step 10" in text
    nothing = section(entries(tmp_path / "x", None), tmp_path / "figures")
    assert "Not run yet: Policy 0" in text_of(nothing.html)
    assert nothing.files == ()


def test_numbers_are_those_of_the_record(tmp_path: Path) -> None:
    rows = [{**r, "category": "word" if i % 2 else "number", "drift": 0.3 if i % 2 else 0.1} for i, r in
            enumerate(panel(1, 60))]  # fmt: skip
    words = sum(r["category"] == "word" for r in rows)
    text = text_of(section(entries(tmp_path, record(rows)), tmp_path / "figures").html)
    assert f"word {words:,} {100 * words / len(rows):.2f} 0.3000" in text
    assert "Clearly above the average: word (1.5 times)." in text
    assert f"{len(rows):,} tokens of 60 responses" in text


@pytest.mark.parametrize(
    ("margin", "said"), [(0.99, "single out almost nobody"), (0.1, "single out most tokens"), (None, "")]
)
def test_thresholds_that_tell_no_tokens_apart_are_named(tmp_path: Path, margin: float | None, said: str) -> None:
    rows = panel(2, 40)
    if margin is not None:
        rows = [{**r, "margin": margin} for r in rows]
    text = text_of(section(entries(tmp_path, record(rows)), tmp_path / "figures").html)
    assert said in text
    assert ("They single out" in text) is bool(said)


def test_a_panel_without_rewordings_is_shown(tmp_path: Path) -> None:
    rows = [{**r, "perturbed": [None, None], "drift": None} for r in panel(3)]
    text = text_of(section(entries(tmp_path, record(rows)), tmp_path / "figures").html)
    assert "None of the problems has a reworded form" in text
    assert "Margins." in text


def test_a_lexicon_of_the_users_is_named(tmp_path: Path) -> None:
    named = copy.deepcopy(record())
    named["spec"]["analysis"]["connectives"] = "lexicon.xml"
    assert "our own (84 words)" in text_of(section(entries(tmp_path, record()), tmp_path / "f").html)
    assert "(84 words) come from a lexicon" in text_of(section(entries(tmp_path / "b", named), tmp_path / "f").html)


def test_the_report_finds_the_panels_of_the_grid(tmp_path: Path) -> None:
    config = fake_config()
    config["analyses"] = {"look": {"kind": "panel", "policies": ["base", "mcpo"]}}
    config["grid"]["analyses"] = ["look"]
    write_json(tmp_path / "analyses" / "look" / "tiny" / "base" / "seed0" / "step0" / "record.json", record())
    (found,) = sections(config, tmp_path, tmp_path / "figures")
    assert found.title == "Drift and margins"
    assert "Not run yet: MCPO, step 50" in text_of(found.html)


def test_the_same_record_gives_the_same_section(tmp_path: Path) -> None:
    of = entries(tmp_path, record())
    first, second = (section(of, tmp_path / name) for name in ("a", "b"))
    assert first.html == second.html
    assert [p.read_bytes() for p in first.files] == [p.read_bytes() for p in second.files]

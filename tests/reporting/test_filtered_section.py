"""The section on filtered decoding: what stands in it, from made-up records."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reporting.fake_results import config as fake_config
from tests.reporting.test_page import Page
from tokencredit.analysis.filtered_outcome import accuracy, compare, paired
from tokencredit.reporting.filtered import section
from tokencredit.reporting.sections import Entry, sections
from tokencredit.study.tables import write_json


def record(rates: dict[str, float], samples: int = 2, problems: int = 150) -> dict[str, Any]:
    """As analysis/filtered.py writes it, from answers with these rates."""
    u = np.random.default_rng(0).random((problems, samples))
    right = {arm: (u < rate).astype(int) for arm, rate in rates.items()}
    mask = {
        "rejected_per_response": 1.2345, "rejected_share": 0.0678, "budget": 0.1, "masked_mass": 0.1,
        "clean_entropy": 0.25, "entropy": 0.04,
    }  # fmt: skip
    temperature = {"greedy": 0.0, "temperature": 0.31}
    arms = {
        arm: {**accuracy(a), "temperature": temperature.get(arm, 1.0), "tokens_mean": 21.0, "truncated": 0.0}
        for arm, a in right.items()
    }
    results = {
        "arms": arms,
        "paired": paired(right["plain"], right["filter"]),
        "masks": {"filter": mask, **({"random": mask | {"masked_mass": 0.09}} if "random" in rates else {})},
        "perturbations": {"4": problems * samples},
        "samples": samples,
        "rejected_tokens": [{"token": "<b>&", "count": 1234}],
        "matched": {"temperature": 0.31, "entropy": 0.04, "target": 0.04, "inside": True},
        **compare(right, 0, 500),
    }
    return {"results": results, "left_out": ["p7"], "spec": {"analysis": {"cap": 0.8}}}


RATES = {"plain": 0.3, "filter": 0.5, "temperature": 0.5, "greedy": 0.42, "random": 0.3}


def entries(root: Path, *records: dict[str, Any] | None) -> list[Entry]:
    found = []
    for i, content in enumerate(records):
        if content is not None:
            write_json(root / str(i) / "record.json", content)
        found.append(Entry("f", "Filter", "m", f"Policy {i}", 0, 10 * i, root / str(i)))
    return found


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any] | None], Path]:
    root = tmp_path_factory.mktemp("section")
    records = [record(RATES), record(RATES | {"filter": 0.2}, samples=1), None]
    return section(entries(root, *records), root / "figures").html, records, root


def test_numbers_and_verdicts_are_there(shown: tuple[str, list[Any], Path]) -> None:
    html, records, _ = shown
    text = text_of(html)
    for content in records[:2]:
        for arm in content["results"]["arms"].values():
            assert f"{arm['accuracy'] * 100:.1f}" in text
            assert f"{arm['low'] * 100:.1f} to {arm['high'] * 100:.1f}" in text
        for control in content["results"]["controls"].values():
            assert control["verdict"].replace("'", "&#39;") in text.replace("\N{NO-BREAK SPACE}", " ")
        for name in ("both_right", "right_to_wrong", "wrong_to_right", "both_wrong"):
            assert f"{content['results']['paired'][name]:,}" in text
    assert text.count("the filter is worse than plain sampling") == 1


def test_the_papers_numbers_stand_beside_with_their_source(shown: tuple[str, list[Any], Path]) -> None:
    text = text_of(shown[0])
    for number in ("202", "60", "98", "640", "50.58", "4.58", "15.8 %", "30.0 %", "arXiv 2609.40360"):
        assert number in text


def test_the_html_is_well_formed(shown: tuple[str, list[Any], Path]) -> None:
    page = Page(shown[0])  # checks the nesting
    assert len(page.ids) == len(set(page.ids))
    assert all(target.startswith("#") for _, target in page.links)


def test_missing_analyses_are_named(shown: tuple[str, list[Any], Path]) -> None:
    assert "Not run yet: Policy 2, step 20" in text_of(shown[0])


def test_left_out_problems_are_named_and_text_is_escaped(shown: tuple[str, list[Any], Path]) -> None:
    html = shown[0]
    assert "1 problem without any perturbation, left out" in text_of(html)
    assert "p7" in html
    assert "<b>&" not in html
    assert "&lt;b&gt;&amp;" in html


def test_the_figure_is_inline_and_has_the_same_bytes_again(shown: tuple[str, list[Any], Path], tmp_path: Path) -> None:
    html, records, root = shown
    assert html.count("<svg") == 1
    assert "var(--c-" in html
    again = section(entries(tmp_path, *records), tmp_path / "figures")
    assert again.html == html
    for path in again.files:
        assert path.read_bytes() == (root / "figures" / path.name).read_bytes()


def test_without_controls_nothing_is_said_of_them(tmp_path: Path) -> None:
    bare = copy.deepcopy(record({"plain": 0.3, "filter": 0.5}))
    bare["results"]["matched"] = None
    text = text_of(section(entries(tmp_path, bare), tmp_path).html)
    assert "Random mask" not in text
    assert "three ways to sharpen" not in text


def test_nothing_run_yet(tmp_path: Path) -> None:
    found = section(entries(tmp_path, None, None), tmp_path)
    assert "Not run yet: Policy 0; Policy 1, step 10" in text_of(found.html)
    assert found.files == ()


def test_the_grid_decides_which_sections_there_are(tmp_path: Path) -> None:
    values = fake_config()
    assert sections(values, tmp_path, tmp_path) == []
    values["analyses"] = {"f": {"kind": "filtered", "policies": ["base", "scapo"]}}
    values["grid"]["analyses"] = ["f"]
    (found,) = sections(values, tmp_path, tmp_path)
    assert found.title == "Filtered decoding"
    assert "Not run yet: Base model; SCAPO, step 50" in text_of(found.html)

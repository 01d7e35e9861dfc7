"""The documentation says what the code does."""

from __future__ import annotations

import re

import pytest

from tests.workflow.conftest import ROOT, Folder
from tokencredit.docs import pages, reconstructed_table, tables_page
from tokencredit.study.tables import SCHEMAS

ARCHITECTURE = ROOT / "docs" / "architecture.md"


def test_pages_made_from_the_code_are_current() -> None:
    for path, text in pages(ROOT).items():
        assert path.read_text() == text, f"{path}: call `make docs`"


def test_what_is_reconstructed_stands_in_the_readme() -> None:
    table = reconstructed_table()
    assert "Margin thresholds" in table
    assert table in (ROOT / "README.md").read_text()
    assert {line.count("|") for line in table.splitlines()} == {5}


def test_tables_page_names_every_column() -> None:
    page = tables_page()
    for table, columns in SCHEMAS.items():
        section = page.split(f"\n## {table}\n", 1)[1].split("\n## ", 1)[0]
        assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == [c.name for c in columns]


@pytest.mark.slow
def test_rule_graph_is_current(empty: Folder) -> None:
    drawn = empty.snakemake("--rulegraph", "mermaid-js").text
    names = dict(re.findall(r"^\s*(id\d+)\[(\w+)\]", drawn, re.MULTILINE))
    real = {(names[a], names[b]) for a, b in re.findall(r"^\s*(id\d+) --> (id\d+)", drawn, re.MULTILINE)}
    block = ARCHITECTURE.read_text().split("```mermaid\n", 1)[1].split("```", 1)[0]
    shown = {(a, b) for a, b in re.findall(r"(\w+) --> (\w+)", block)}
    assert shown == real


def test_pages_that_are_linked_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_path_of_a_machine_stands_in_what_is_shipped() -> None:
    for page in (ROOT / "README.md", ROOT / "Makefile", ROOT / "Snakefile", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"(?<![\w.])/(root|home|work)/", page.read_text()), page

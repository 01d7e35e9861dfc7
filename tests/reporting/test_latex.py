"""Every table that is written as LaTeX compiles, whatever stands in the labels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.reporting.fake_results import build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.reporting.report import build_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("pdflatex") is None,
        reason="no LaTeX here (Debian: apt-get install texlive-latex-base texlive-latex-recommended)",
    ),
]
PAGE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[landscape,margin=1cm]{geometry}
\usepackage{booktabs}
\usepackage{longtable}
\begin{document}
%s
\end{document}
"""


def test_every_table_compiles(tmp_path: Path) -> None:
    values = config(seeds=2, rollouts=5, samples=4)
    values["models"]["tiny"]["paper"] = "Qwen3-4B-Base"
    values["benchmarks"]["easy"] |= {"paper": "aime_2024_2026", "label": "50 % of a_b & c#1 {x} ~ ^ \\ $"}
    values["methods"]["mcpo"]["label"] = "MCPO_{50 %} & more"
    root, specs = build(tmp_path, values)
    (root / "eval/tiny/scapo/seed0/step10/hard.parquet").unlink()  # missing cells have a form of their own
    aggregate(specs["aggregate"], root, root / "analysis")
    build_report(specs["report"], root, root)
    tables = sorted((root / "tables").glob("*.tex"))
    assert [t.name for t in tables] == ["main_tiny.tex", "published_tiny.tex"]
    for table in tables:
        page = tmp_path / f"page_{table.stem}.tex"
        page.write_text(PAGE % table.read_text())
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", page.name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout[-3000:]
        assert "Missing character" not in (tmp_path / f"{page.stem}.log").read_text(errors="replace")
        assert (tmp_path / f"{page.stem}.pdf").stat().st_size > 1000

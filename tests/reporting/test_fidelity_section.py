"""The section on credit fidelity: every number from the tables, words that follow the intervals, nothing left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokencredit.analysis.fidelity_scores import Credited, Measured, score_all
from tokencredit.analysis.fidelity_tables import scores_table
from tokencredit.reporting import fidelity
from tokencredit.reporting.fidelity import section
from tokencredit.reporting.sections import Entry
from tokencredit.study.tables import read_table, write_json, write_table

LABELS = {"grpo": "GRPO", "gspo": "GSPO", "mcpo": "MCPO", "scapo": "SCAPO & <friends>"}
SIZE = 20


def truth(rng: np.random.Generator) -> list[Measured]:
    """Responses whose tokens 4 and 9 decided."""
    found = []
    for i in range(30):
        effect = rng.normal(scale=0.01, size=SIZE)
        effect[[4, 9]] = 0.4, -0.3
        found.append(
            Measured(
                f"p{i // 3}", effect, np.full(SIZE, 0.02), np.zeros(SIZE), np.stack([effect] * 2),
                np.ones(SIZE, dtype=bool), i % 2 == 0, ("digit",) * 10 + ("word",) * 10, np.arange(SIZE) == 1,
            )
        )  # fmt: skip
    return found


def entry(folder: Path, policy: str = "GRPO", step: int = 80) -> Entry:
    return Entry("f", "f", "m", policy, 0, step, folder, LABELS)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished analysis: MCPO credits what decided, SCAPO takes from it in right responses and adds in wrong ones."""
    folder, rng = tmp_path_factory.mktemp("done"), np.random.default_rng(0)
    measured = truth(rng)
    sizes = [np.abs(m.effect) for m in measured]
    credits = {
        "grpo": [Credited(np.ones(SIZE)) for _ in measured],
        "gspo": [Credited(np.ones(SIZE)) for _ in measured],
        "mcpo": [Credited(1 + e) for e in sizes],
        "scapo": [Credited(1 - e if m.correct else -1 - e, 1 if m.correct else -1) for e, m in zip(sizes, measured, strict=True)],
    }  # fmt: skip
    signals = {name: [s + 0.001 for s in sizes] for name in ("hesitation", "entropy", "surprisal")}
    signals["drift"] = [1 - s for s in sizes]
    scores = score_all(measured, credits, signals, 200, 1)
    write_table("fidelity_scores", scores_table(scores), folder / "fidelity_scores.parquet")
    write_json(folder / "record.json", record())
    return folder


def record(measured: int = 30) -> dict[str, Any]:
    return {
        "spec": {"analysis": {"samples": 64, "tolerance": 0.01}},
        "results": {"accuracy": 0.51, "settled": 0.3},
        "counts": {
            "measured": measured, "measured_problems": 10, "tokens": measured * SIZE, "continuations": 12345, "forks": 1
        },
        "chosen": "the 30 lowest hashes",
    }  # fmt: skip


def plain(html: str) -> str:
    """The page's text, entities left as they are."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_numbers_stand_as_in_the_table(done: Path, tmp_path: Path) -> None:
    made = section([entry(done)], tmp_path)
    rows = read_table("fidelity_scores", done / "fidelity_scores.parquet").to_pylist()
    text = plain(made.html)
    for credit in ("mcpo", "scapo", "signal:drift", "reference:split_half"):
        for score in ("top20", "mass20"):
            (row,) = [r for r in rows if (r["credit"], r["score"], r["category"]) == (credit, score, "all")]
            assert f"{row['value'] * 100:.1f}" in text
    assert "30 responses to 10 problems, 600 tokens" in text and "12,345 continuations" in text
    assert "the 30 lowest hashes" in text and "51 %" in text and "70 %" in text
    assert made.title == "Credit fidelity"


def test_equal_credits_share_a_row_and_labels_are_escaped(done: Path, tmp_path: Path) -> None:
    html = section([entry(done)], tmp_path).html
    assert "GRPO / GSPO" in html
    assert "SCAPO &amp; &lt;friends&gt;" in html and "<friends>" not in html


def test_words_follow_the_intervals(done: Path, tmp_path: Path) -> None:
    text = plain(section([entry(done)], tmp_path).html)
    assert "SCAPO &amp; &lt;friends&gt;: less credit for the deciding tokens of right responses, more blame" in text
    assert "Hesitation is higher where the effect is larger" in text
    assert "Drift is higher where the effect is smaller" in text
    assert re.search(r"Where it points: .* MCPO \d+ %", text)


def test_what_is_missing_or_empty_is_named(done: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    write_json(empty / "record.json", record(0))
    made = section([entry(done), entry(tmp_path / "none", "MCPO", 40), entry(empty, "Base model", 0)], tmp_path)
    text = plain(made.html)
    assert "Not run yet: MCPO, step 40." in text
    assert "Nothing to measure: Base model." in text
    nothing = section([entry(tmp_path / "none")], tmp_path / "other")
    assert "Not run yet" in nothing.html and not nothing.files and "<svg" not in nothing.html


def test_figures_stand_alone_and_are_the_same_again(done: Path, tmp_path: Path) -> None:
    made = [section([entry(done), entry(done, "Base model", 0)], tmp_path / name) for name in "ab"]
    assert made[0].html == made[1].html
    assert [p.name for p in made[0].files] == [p.name for p in made[1].files]
    assert [p.read_bytes() for p in made[0].files] == [p.read_bytes() for p in made[1].files]
    svgs = re.findall(r"<svg.*?</svg>", made[0].html, flags=re.S)
    assert len(svgs) == 2 and all(
        'aria-label="' in svg and "http" not in svg.replace("http://www.w3.org", "") for svg in svgs
    )


def test_every_score_of_the_table_has_a_column_or_its_own_table(done: Path) -> None:
    rows = read_table("fidelity_scores", done / "fidelity_scores.parquet").to_pylist()
    assert {r["score"] for r in rows} == {*fidelity.COLUMNS, "share"}

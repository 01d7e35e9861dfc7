"""What the analyses of single checkpoints add to the report: one section per kind of analysis in the grid."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.analysis.plan import BASE, layout
from tokencredit.study.analyses import ANALYSES
from tokencredit.study.config import load_study
from tokencredit.study.grid import analyses
from tokencredit.study.tables import read_json


@dataclass(frozen=True)
class Entry:
    """One analysis of one policy. policy: its label; folder: of record.json and the tables, there or not.

    labels: of the grid's methods, in its order; sets: names of problem sets as the report shows them.
    """

    name: str
    label: str
    model: str
    policy: str
    seed: int
    step: int
    folder: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)

    def set_label(self, name: str) -> str:
        return "Training problems" if name == "train" else self.sets.get(name) or name

    def record(self) -> dict[str, Any] | None:
        """The analysis' record, None where it has not been run."""
        path = self.folder / "record.json"
        return read_json(path) if path.exists() else None


@dataclass(frozen=True)
class Section:
    """title: also in the page's table of contents; html: what stands below it, safe as it is; files: those written."""

    title: str
    html: str
    files: tuple[Path, ...] = ()


def sections(config: Mapping[str, Any], root: Path | str, out: Path | str) -> list[Section]:
    """The section of every kind that the grid names, by reporting/{kind}.py; figures go into `out`."""
    study, place, found = load_study(config, "the report's spec"), layout(root), []
    labels = {name: study.methods[name].label or name for name in study.grid.methods}
    sets = {name: study.benchmarks[name].label or name for name in study.grid.benchmarks}
    for kind in ANALYSES:
        entries = []
        for name, cell, step in analyses(study):
            if study.analyses[name].kind == kind:
                policy = "Base model" if cell.method == BASE else study.methods[cell.method].label or cell.method
                folder = Path(place.analysis(name, cell, step, "record.json")).parent
                label = study.analyses[name].label or name
                entries.append(Entry(name, label, cell.model, policy, cell.seed, step, folder, labels, sets))
        if entries:
            found.append(importlib.import_module(f"tokencredit.reporting.{kind}").section(entries, Path(out)))
    return found

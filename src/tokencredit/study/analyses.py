"""Analyses without training: what is looked at in a policy, on which problems, with which settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tokencredit.study.base import Name, Settings

Positive = Annotated[int, Field(ge=1)]


class Analysis(Settings):
    """One response each to `count` problems, by every policy named: `base`, or a method's final checkpoint."""

    label: str = ""
    policies: Annotated[tuple[Name, ...], Field(strict=False)] = ("base",)
    problems: Name = "train"  # the training problems, or a benchmark of the grid
    count: Positive = 1000
    max_tokens: Positive = 8192


class Panel(Analysis):
    """Diagnostic panel: drift, margin and entropy per token, by token category (SCAPO section 3)."""

    kind: Literal["panel"]
    tables: ClassVar[tuple[str, ...]] = ()


class Filtered(Analysis):
    """d-filtered decoding paired with plain sampling, beside the controls that tell stability from sharpening."""

    kind: Literal["filtered"]
    tables: ClassVar[tuple[str, ...]] = ()


class Fidelity(Analysis):
    """Every method's credit scored against Monte Carlo effects of each position."""

    kind: Literal["fidelity"]
    tables: ClassVar[tuple[str, ...]] = ()


AnyAnalysis = Annotated[Panel | Filtered | Fidelity, Field(discriminator="kind")]
ANALYSES: dict[str, type[Analysis]] = {"panel": Panel, "filtered": Filtered, "fidelity": Fidelity}

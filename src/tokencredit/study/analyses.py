"""Analyses without training: what is looked at in a policy, on which problems, with which settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tokencredit.study.base import Name, Settings, Strings

Positive = Annotated[int, Field(ge=1)]


class Look(Settings):
    """A look into every policy named: `base`, or a method's final checkpoint."""

    label: str = ""
    policies: Annotated[tuple[Name, ...], Field(strict=False)] = ("base",)
    tables: ClassVar[tuple[str, ...]] = ()

    @property
    def sets(self) -> tuple[str, ...]:
        """Problem sets that are read: the training problems ("train"), or benchmarks of the grid."""
        return ()

    @property
    def perturbed_sets(self) -> tuple[str, ...]:
        """Those of them whose semifactuals are read too."""
        return self.sets


class Analysis(Look):
    """One response each to `count` problems."""

    problems: Name = "train"  # the training problems, or a benchmark of the grid
    count: Positive = 1000
    max_tokens: Positive = 8192

    @property
    def sets(self) -> tuple[str, ...]:
        return (self.problems,)


class Panel(Analysis):
    """Diagnostic panel: drift, margin and entropy per token, by token category (SCAPO section 3).

    connectives: a user's own DiMLex-Eng lexicon in place of our list. shard_problems: problems per resumable part.
    """

    kind: Literal["panel"]
    kinds: Strings = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
    connectives: str | None = None
    shard_problems: Positive = 64
    tables: ClassVar[tuple[str, ...]] = ("panel_tokens",)

    @field_validator("kinds")
    @classmethod
    def _distinct(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(kinds)) != len(kinds) or not kinds:
            raise ValueError("each kind once, at least one")
        return kinds


class Filtered(Analysis):
    """d-filtered decoding paired with plain sampling, beside the controls that tell stability from sharpening.

    cap: most of the clean probability that the filter may mask at a step. controls: greedy, matched temperature,
    random mask. shard_samples: samples per resumable part.
    """

    kind: Literal["filtered"]
    cap: Annotated[float, Field(ge=0, lt=1)] = 0.8
    kinds: Strings = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
    samples: Positive = 1
    controls: bool = True
    shard_samples: Positive = 512
    tables: ClassVar[tuple[str, ...]] = ("filtered_samples",)

    @field_validator("kinds")
    @classmethod
    def _distinct(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(kinds)) != len(kinds) or not kinds:
            raise ValueError("each kind once, at least one")
        return kinds


class Fidelity(Analysis):
    """Every method's credit scored against Monte Carlo effects of each position.

    count: problems, each with training.group samples; of those from groups with mixed rewards `responses` are measured.
    samples: continuations per position; tolerance: how far a value may be off where the policy is too certain to be
    sampled; draws: of the bootstrap; shard_responses: measured responses per resumable part.
    """

    kind: Literal["fidelity"]
    count: Positive = 100
    responses: Positive = 200
    samples: Annotated[int, Field(ge=2)] = 64
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    draws: Annotated[int, Field(ge=100)] = 2000
    shard_responses: Positive = 20
    tables: ClassVar[tuple[str, ...]] = ("fidelity_tokens", "fidelity_credits", "fidelity_scores")


class Completion(Look):
    """Contamination: how a policy completes problems it is shown the beginning of, beside sets it cannot have seen.

    problems: sets (default: the training problems and every benchmark of the grid); controls: those of them that the
    model cannot have seen (default: synthetic benchmarks, and those published after the model's release); share: of a
    problem's characters that are shown, to the end of a word; count: problems of each set at most; shard_problems:
    problems per resumable part.
    """

    kind: Literal["completion"]
    problems: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    controls: Annotated[tuple[Name, ...] | None, Field(strict=False)] = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.6
    count: Positive = 500
    max_tokens: Positive = 512
    shard_problems: Positive = 256
    tables: ClassVar[tuple[str, ...]] = ("completions",)

    @property
    def sets(self) -> tuple[str, ...]:
        return self.problems

    @property
    def perturbed_sets(self) -> tuple[str, ...]:
        return ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        if len(set(self.problems)) < len(self.problems):
            raise ValueError("problems: each set once")
        for name in self.controls or ():
            if self.problems and name not in self.problems:
                raise ValueError(f"controls: '{name}' is not among problems ({', '.join(self.problems)})")
        return self


AnyAnalysis = Annotated[Panel | Filtered | Fidelity | Completion, Field(discriminator="kind")]
ANALYSES: dict[str, type[Look]] = {
    "panel": Panel,
    "filtered": Filtered,
    "fidelity": Fidelity,
    "completion": Completion,
}

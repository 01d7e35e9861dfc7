"""A method is a group advantage, token credits in order, and an objective (DESIGN section 4)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tokencredit.study.base import Settings, Strings

Unit = Annotated[float, Field(ge=0, le=1)]


class Advantage(Settings):
    """(R - mean) / (std + eps) over the group. ddof 1 is a 7 % smaller step than ddof 0 at G = 8."""

    scale: Literal["std", "none"] = "std"
    ddof: Literal[0, 1] = 1
    eps: Annotated[float, Field(gt=0)] = 1.0e-6


class MarginCredit(Settings):
    """MCPO. Thresholds, strength and form are our reconstruction: only the paper's abstract is known."""

    kind: Literal["margin"]
    low: Unit = 0.2
    high: Unit = 0.8
    strength: Annotated[float, Field(ge=0)] = 1.0
    form: Literal["ratio", "additive", "proportional"] = "ratio"
    cap: Annotated[float, Field(ge=1)] = 10.0  # proportional form only
    where: Literal["all", "positive", "negative"] = "all"
    control: Literal["none", "shuffled", "inverted", "uniform"] = "none"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.form == "additive" and self.strength > 1:
            raise ValueError("strength above 1 lets the additive form flip signs")
        return self


class SemifactualCredit(Settings):
    """SCAPO (arXiv 2609.40360). strength is lambda_0, steps is N_0 in optimisation steps."""

    kind: Literal["semifactual"]
    strength: Annotated[float, Field(ge=0)] = 0.01
    steps: Annotated[int, Field(ge=0)] = 120
    kinds: Strings = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
    signs: Literal["negative", "all", "positive"] = "negative"
    control: Literal["none", "shuffled"] = "none"
    eps: Annotated[float, Field(gt=0)] = 1.0e-6


class TokenClip(Settings):
    """PPO's clipped ratio per token, with dual clip (None: none)."""

    kind: Literal["token_clip"] = "token_clip"
    low: Annotated[float, Field(gt=0, lt=1)] = 0.20
    high: Annotated[float, Field(gt=0)] = 0.28
    dual: Annotated[float, Field(gt=1)] | None = 10.0


Credit = Annotated[MarginCredit | SemifactualCredit, Field(discriminator="kind")]


class Method(Settings):
    label: str = ""
    advantage: Advantage = Advantage()
    credit: Annotated[tuple[Credit, ...], Field(strict=False)] = ()
    objective: TokenClip = TokenClip()

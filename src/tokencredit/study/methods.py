"""A method is a group advantage, token credits in order, and an objective (DESIGN section 4)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from tokencredit.study.base import Name, Settings, Strings
from tokencredit.study.errors import UserError

Unit = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Advantage(Settings):
    """(R - mean) / (std + eps) over the group. ddof 1 is a 7 % smaller step than ddof 0 at G = 8."""

    scale: Literal["std", "none"] = "std"
    ddof: Literal[0, 1] = 1
    eps: Positive = 1.0e-6


# --- rewards and rollouts ---


class Overlong(Settings):
    """DAPO's soft overlong penalty: 0 up to (1 - share) of the response limit, then linear down to -1 at the limit."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.2  # 4,096 of 20,480 tokens


class Refill(Settings):
    """DAPO's dynamic sampling: groups all right or all wrong are dropped and others drawn, up to `draws` rounds."""

    draws: Count = 10


class Length(Settings):
    """A control arm of ours, in no paper: held to the response length of another method's run.

    reward = right - strength min(1, |tokens - target| / target), target: mean response length of the run of `like` with
    the same model and seed at the same rollout. Tells longer answers from better credit.
    """

    like: Name
    strength: Positive = 0.5


# --- token credits ---


class MarginCredit(Settings):
    """MCPO. Thresholds, strength and form are our reconstruction: only the paper's abstract is known.

    With signal "entropy" the thresholds are nats, and tokens at or above `high` are hesitant.
    """

    kind: Literal["margin"]
    signal: Literal["margin", "entropy"] = "margin"
    low: Annotated[float, Field(ge=0)] = 0.2
    high: Annotated[float, Field(ge=0)] = 0.8
    strength: Annotated[float, Field(ge=0)] = 1.0
    form: Literal["ratio", "additive", "proportional"] = "ratio"
    cap: Annotated[float, Field(ge=1)] = 10.0  # proportional form only
    where: Literal["all", "positive", "negative"] = "all"
    control: Literal["none", "shuffled", "inverted", "uniform"] = "none"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.signal == "margin" and self.high > 1:
            raise ValueError(f"a margin is at most 1: high is {self.high}")
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
    eps: Positive = 1.0e-6


class SpanCredit(Settings):
    """CF-GRPO (arXiv 2602.09331). That [0.5, 4] bounds w before it is rescaled is our reconstruction."""

    kind: Literal["spans"]
    spans: Count = 10
    arithmetic: Annotated[int, Field(ge=0)] = 5  # of the spans, at most so many "a op b = c"
    shortest: Count = 5
    longest: Count = 50
    floor: Annotated[float, Field(ge=0)] = 0.2
    low: Positive = 0.5
    high: Positive = 4.0
    answer: Positive = 1.5

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high or self.shortest > self.longest:
            raise ValueError("low must not pass high, nor shortest pass longest")
        return self


class FutureCredit(Settings):
    """FIPO (arXiv 2603.19835). unsafe_low: f is held in [unsafe_low, 1] where A < 0 and r > safety; its text says 1."""

    kind: Literal["future_kl"]
    half_life: Positive = 32.0
    low: Positive = 1.0
    high: Positive = 1.2
    safety: Annotated[float, Field(gt=1)] = 10.0
    unsafe_low: Unit = 0.8

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not pass high ({self.high})")
        return self


class EntropyCredit(Settings):
    """80/20 (arXiv 2506.01939): only the `share` of a rollout's tokens with most entropy learn."""

    kind: Literal["entropy"]
    share: Annotated[float, Field(gt=0, le=1)] = 0.2


class OracleCredit(Settings):
    """Monte Carlo effects of each position as credit: a reference, not a method (ours; values as in VinePPO)."""

    kind: Literal["oracle"]
    samples: Count = 8  # continuations per position
    form: Literal["effect", "weight"] = "effect"
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02  # positions the model is so certain of are not sampled
    cap: Annotated[float, Field(ge=1)] = 10.0  # weight form only


# --- objectives ---


class TokenClip(Settings):
    """PPO's clipped ratio per token, with dual clip (None: none)."""

    kind: Literal["token_clip"] = "token_clip"
    low: Annotated[float, Field(gt=0, lt=1)] = 0.20
    high: Positive = 0.28
    dual: Annotated[float, Field(gt=1)] | None = 10.0


class SequenceClip(Settings):
    """GSPO (arXiv 2507.18071): the clipped length-normalised ratio of the response."""

    kind: Literal["sequence_clip"]
    low: Annotated[float, Field(gt=0, lt=1)] = 3.0e-4
    high: Positive = 4.0e-4


class SoftGate(Settings):
    """SAPO (arXiv 2511.20347): a sigmoid gate in place of the clip."""

    kind: Literal["soft_gate"]
    positive: Positive = 1.0
    negative: Positive = 1.05


Credit = Annotated[
    MarginCredit | SemifactualCredit | SpanCredit | FutureCredit | EntropyCredit | OracleCredit,
    Field(discriminator="kind"),
]
Objective = Annotated[TokenClip | SequenceClip | SoftGate, Field(discriminator="kind")]


class Method(Settings):
    label: str = ""
    advantage: Advantage = Advantage()
    overlong: Overlong | None = None
    refill: Refill | None = None
    length: Length | None = None
    credit: Annotated[tuple[Credit, ...], Field(strict=False)] = ()
    objective: Objective = TokenClip()
    reduction: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"

    @field_validator("objective", mode="before")
    @classmethod
    def _clip_by_default(cls, value: Any) -> Any:
        return {"kind": "token_clip", **value} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _once(self) -> Self:
        kinds = [c.kind for c in self.credit]
        if len(set(kinds)) != len(kinds):
            raise ValueError(f"a credit is named twice: {', '.join(kinds)}")
        return self

    @property
    def parts(self) -> set[str]:
        """Names of what this method is made of: its credits, its objective, reward shaping and refilling."""
        rollout = [name for name in ("overlong", "refill", "length") if getattr(self, name) is not None]
        return {self.objective.kind, *(c.kind for c in self.credit), *rollout}

    def of(self, kind: str) -> object | None:
        """This method's credit of a kind, or None."""
        return next((c for c in self.credit if c.kind == kind), None)


def with_params(values: Mapping[str, Any], params: Sequence[str]) -> dict[str, Any]:
    """A method's settings with `key=value` changes; a credit's settings by its kind, values as YAML.

    >>> with_params({"credit": [{"kind": "margin"}]}, ["margin.low=0.1", "objective.dual=null"])
    {'credit': [{'kind': 'margin', 'low': 0.1}], 'objective': {'dual': None}}
    """
    out: dict[str, Any] = copy.deepcopy(dict(values))
    for param in params:
        key, equals, text = param.partition("=")
        first, *rest = key.strip().split(".")
        if not equals or not first:
            raise UserError(f"--param {param}: must be KEY=VALUE, e.g. objective.low=0.1 or margin.strength=0.5")
        at: dict[str, Any] = out
        credit = next((c for c in out.get("credit", []) if c.get("kind") == first), None)
        if credit is not None and rest:
            at = credit
        else:
            rest = [first, *rest]
        for part in rest[:-1]:
            at = at.setdefault(part, {})
        try:
            at[rest[-1]] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"--param {param}: the value is not YAML") from None
    return out

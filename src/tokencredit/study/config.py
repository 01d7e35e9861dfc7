"""The study: what is asked, of which models, by which methods, how often. Read once, frozen, logged as used.

config.yaml at the top level names every setting with its default for the embedded study; a study file under
workflow/studies overrides what differs. Maps (models, methods, benchmarks) hold definitions; the lists under
`grid` select from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tokencredit.study.analyses import AnyAnalysis, Completion
from tokencredit.study.base import Ints, Months, Name, Settings, Strings, expand, parse, unknown_name
from tokencredit.study.engines import AnyEngine, AnyEvaluator, Vllm
from tokencredit.study.errors import UserError
from tokencredit.study.methods import Method
from tokencredit.study.origins import ImportOrigin, Origin
from tokencredit.study.registry import Registry, filled
from tokencredit.study.sources import ModelSource, ProblemSource

SEMIFACTUAL_KINDS = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
SINGULAR = {"analyses": "analysis"}
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Prompt(Settings):
    """How a problem becomes a prompt. `{problem}` is replaced literally; braces need no doubling."""

    template: str = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    chat: bool = False

    @field_validator("template")
    @classmethod
    def _has_problem(cls, value: str) -> str:
        if value.count("{problem}") != 1:
            raise ValueError("must contain {problem} exactly once")
        return value


class Adapter(Settings):
    """What is trained: every parameter, or LoRA on all linear layers but the head (peft)."""

    kind: Literal["full", "lora"] = "full"
    rank: Positive = 32
    alpha: Positive = 64
    dropout: Annotated[float, Field(ge=0, le=0)] = 0.0  # ratio must be exactly 1 at the first update
    targets: Literal["all-linear", "attention", "mlp"] = "all-linear"


class Model(Settings):
    """A base model.

    released: its day, for what it can have read (contamination); paper: the published tables' name for it, where the
    hub id does not say it. No stage depends on either.
    """

    source: ModelSource
    prompt: Prompt = Prompt()
    adapter: Adapter = Adapter()
    dtype: Literal["float32", "bfloat16"] = "float32"
    engine: AnyEngine = "auto"
    gradient_checkpointing: bool = False
    released: Annotated[date | None, Field(strict=False)] = None
    paper: str = ""


class Benchmark(Settings):
    """A problem set to evaluate on. One named like a set of the registry needs no source: that set is meant.

    published: months in which its problems were first public; the registry knows its sets'.
    paper: row of the papers' tables that stands beside it (reporting/published_tables.yaml), where its name is none.
    """

    source: ProblemSource
    samples: Positive = 16
    checkpoints: Literal["all", "final"] = "all"
    tolerance: Annotated[float, Field(gt=0)] | None = None
    label: str = ""
    published: Months = ()
    paper: str = ""


class Average(Settings):
    """A mean over benchmarks of the grid, each counted once, in place of the macro mean over all of them."""

    label: str = ""
    paper: str = ""  # row of the papers' tables, as for a benchmark
    of: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]

    @field_validator("of")
    @classmethod
    def _distinct(cls, of: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(of)) != len(of):
            raise ValueError("names a benchmark twice")
        return of


class Overlap(Settings):
    """Training problems that are also test problems: always reported, and by `drop` left out of training.

    threshold: Jaccard index of word 4-grams above which two problems are one; against: benchmarks whose problems are
    dropped (default: all of the grid; with a list, a benchmark added later changes nothing in training).
    """

    drop: bool = False
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.6
    against: Annotated[tuple[Name, ...] | None, Field(strict=False)] = None


class Semifactuals(Settings):
    kinds: Strings = SEMIFACTUAL_KINDS
    counterfactual: bool = False
    origin: Origin = "rules"

    @property
    def files(self) -> list[str]:
        """Local files the perturbations are read from, expanded."""
        return [expand(self.origin.path)] if isinstance(self.origin, ImportOrigin) else []

    @field_validator("origin", mode="before")
    @classmethod
    def _rules(cls, value: Any) -> Any:
        return "rules" if value == {"kind": "rules"} else value

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in SEMIFACTUAL_KINDS:
                raise ValueError(f"unknown kind '{kind}' (one of {', '.join(SEMIFACTUAL_KINDS)})")
        if len(set(kinds)) != len(kinds) or not kinds:
            raise ValueError("each kind once, at least one")
        return kinds


class Optimizer(Settings):
    """AdamW at a constant rate after a linear warm-up."""

    lr: Annotated[float, Field(gt=0)] = 1.0e-6
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Annotated[float, Field(gt=0)] = 1.0e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0


class Training(Settings):
    rollouts: Positive = 300
    prompts: Positive = 128
    group: Annotated[int, Field(ge=2)] = 8
    updates: Positive = 2
    allow_single_update: bool = False
    subset: Positive | None = None
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_prompt_tokens: Positive = 1024
    max_tokens: Positive = 16384
    truncated: Literal["keep", "drop"] = "keep"
    sampler_correction: Literal["none", "truncated"] = "none"
    """truncated: each token's loss is weighed by min(p / q, sampler_cap), p the trainer's probability before the update
    and q the engine's (truncated importance sampling), for engines that compute in another way than the trainer."""
    sampler_cap: Annotated[float, Field(ge=1)] = 2.0
    optimizer: Optimizer = Optimizer()
    microbatch_tokens: Positive = 16384
    score_tile: Positive = 2**23
    checkpoints: Ints = ()
    rollouts_kept: Annotated[int, Field(ge=0)] = 2

    @property
    def steps(self) -> int:
        """Optimisation steps of one run."""
        return self.rollouts * self.updates

    @property
    def evaluated_steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints are evaluated; the last one always is."""
        return tuple(sorted({*self.checkpoints, self.steps}))

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.top_p != 1.0 or self.top_k != 0:
            raise ValueError(
                "top_p must be 1.0 and top_k 0 for training rollouts: the old log-probabilities are those of the "
                "full distribution (set evaluation.top_p for evaluation)"
            )
        if self.prompts % self.updates:
            raise ValueError(f"updates ({self.updates}) must divide prompts ({self.prompts})")
        if self.updates == 1 and not self.allow_single_update:
            raise ValueError(
                "updates: 1 makes every ratio exactly 1, so clipping and all methods that differ only there are "
                "the same method; use 2 or more (or allow_single_update: true)"
            )
        odd = [s for s in self.checkpoints if s % self.updates or not 0 < s <= self.steps]
        if odd:
            raise ValueError(f"checkpoints {odd}: must be multiples of updates ({self.updates}), at most {self.steps}")
        return self


class Evaluation(Settings):
    temperature: Annotated[float, Field(ge=0)] = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_tokens: Positive = 16384
    library_verdict: bool = True
    engine: AnyEvaluator | None = None
    """In place of the model's own: another engine, or a server ({kind: server, base_url: ...}), study/engines.py."""
    shard_samples: Positive = 4096


class Runtime(Settings):
    """How work is done, not what is computed: changing these re-runs nothing."""

    threads: Positive = 1
    save_minutes: Annotated[float, Field(ge=0)] = 5.0
    wall_minutes: Annotated[float, Field(gt=0)] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    grader_workers: Positive = 1
    copies: Positive = 1  # of the model in one evaluation, a process and the engine's GPUs each


class Grid(Settings):
    models: Annotated[tuple[Name, ...], Field(strict=False)]
    methods: Annotated[tuple[Name, ...], Field(strict=False)]
    seeds: Ints
    benchmarks: Annotated[tuple[Name, ...], Field(strict=False)]
    analyses: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    baseline: Name = "grpo"

    @field_validator("models", "methods", "seeds", "benchmarks", "analyses")
    @classmethod
    def _distinct(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names the same entry twice")
        return value


class Study(Settings):
    study: Name
    title: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    results: str = "results"
    problems: ProblemSource
    registry: Registry = Registry()
    overlap: Overlap = Overlap()
    semifactuals: Semifactuals = Semifactuals()
    benchmarks: dict[Name, Benchmark]
    averages: dict[Name, Average] = Field(default_factory=dict)
    models: dict[Name, Model]
    methods: dict[Name, Method]
    analyses: dict[Name, AnyAnalysis] = Field(default_factory=dict)
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    runtime: Runtime = Runtime()
    grid: Grid

    @model_validator(mode="before")
    @classmethod
    def _registry_sets(cls, values: Any) -> Any:
        return filled(values)


def load_study(values: Mapping[str, Any], where: str = "config") -> Study:
    """Validate a configuration as a study; every name in the grid must be defined.

    Raises UserError that names the key, what is wrong, and the nearest right one.
    """
    study = _with_sets(parse(Study, values, where))
    tables: dict[str, Mapping[str, Any]] = {
        "models": study.models,
        "methods": study.methods,
        "benchmarks": study.benchmarks,
        "analyses": study.analyses,
    }
    for kind, table in tables.items():
        for name in getattr(study.grid, kind):
            if name not in table:
                raise unknown_name(SINGULAR.get(kind, kind.removesuffix("s")), name, table, f"{where}: grid.{kind}")
    for name in study.grid.analyses:
        analysis, at = study.analyses[name], f"{where}: analyses.{name}"
        for policy in analysis.policies:
            if policy not in ("base", *study.grid.methods):
                raise unknown_name("policy", policy, dict.fromkeys(("base", *study.grid.methods)), f"{at}.policies")
        known = dict.fromkeys(("train", *study.grid.benchmarks))
        controls = analysis.controls if isinstance(analysis, Completion) else None
        for problems in (*analysis.sets, *(controls or ())):
            if problems not in known:
                raise unknown_name("problem set", problems, known, f"{at}.problems")
    for name, average in study.averages.items():
        if name in study.benchmarks or name == "macro":
            raise UserError(f"{where}: averages.{name}: this is the name of something else; choose another one")
        for benchmark in average.of:
            if benchmark not in study.grid.benchmarks:
                raise unknown_name(
                    "benchmark", benchmark, dict.fromkeys(study.grid.benchmarks), f"{where}: averages.{name}.of"
                )
    for name in study.overlap.against or ():
        if name not in study.grid.benchmarks:
            raise unknown_name("benchmark", name, dict.fromkeys(study.grid.benchmarks), f"{where}: overlap.against")
    for name in study.grid.models:
        engine = study.models[name].engine
        if isinstance(engine, Vllm) and engine.probes == "engine" and study.training.temperature != 1.0:
            raise UserError(
                f"{where}: models.{name}.engine.probes: engine: vLLM reads at temperature 1 only, and "
                f"training.temperature is {study.training.temperature}; use probes: trainer"
            )
    for name in study.grid.methods:
        _check_credit(study, name, f"{where}: methods.{name}.credit")
        _check_length(study, name, f"{where}: methods.{name}.length.like")
    if "base" in study.methods:
        raise unknown_name("method", "base", {}, f"{where}: methods ('base' names the untrained model)")
    return study


def _with_sets(study: Study) -> Study:
    """The study with the sets of its completions named: by default the training problems and every benchmark."""
    named: dict[str, AnyAnalysis] = {
        name: a.model_copy(update={"problems": a.problems or ("train", *study.grid.benchmarks)})
        if isinstance(a, Completion)
        else a
        for name, a in study.analyses.items()
    }
    return study.model_copy(update={"analyses": named})


def _check_length(study: Study, name: str, where: str) -> None:
    """A control arm of length follows another method of the grid, which follows none."""
    held = study.methods[name].length
    if held is None:
        return
    free = dict.fromkeys(n for n in study.grid.methods if study.methods[n].length is None)
    if held.like not in free:
        raise unknown_name("method", held.like, free, f"{where} (a method of the grid without a length term)")


def _check_credit(study: Study, name: str, where: str) -> None:
    """A method's semifactual credit: probes once per rollout, of kinds that the study makes."""
    made = [*study.semifactuals.kinds, *(["counterfactual"] if study.semifactuals.counterfactual else [])]
    for credit in study.methods[name].credit:
        if credit.kind != "semifactual":
            continue
        if credit.steps % study.training.updates:
            raise UserError(
                f"{where}: steps ({credit.steps}) must be a multiple of training.updates "
                f"({study.training.updates}), since a rollout is probed once for all its updates"
            )
        for kind in credit.kinds:
            if kind == "counterfactual" and kind not in made:
                raise UserError(f"{where}: kind 'counterfactual' is only made with semifactuals.counterfactual: true")
            if kind not in made:
                raise unknown_name("kind", kind, dict.fromkeys(made), f"{where}.kinds (semifactuals.kinds)")

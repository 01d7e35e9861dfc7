"""Whether a study's jobs fit a GPU, and which settings would make them fit: found by trying each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokencredit.plan.gpus import Gpu
from tokencredit.plan.memory import Sampler, StepMemory, sampler, train_step
from tokencredit.plan.shapes import Shape
from tokencredit.study.config import Evaluation, Model, Training
from tokencredit.study.engines import Vllm

SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # of the GPU, tried for the engine
SMALLEST_TILE = 2**20  # logits at once: 4 MiB


@dataclass(frozen=True)
class Case:
    """A model with its settings, and what it takes on one GPU."""

    model: Model
    training: Training
    step: StepMemory
    sampler: Sampler  # in training
    evaluator: Sampler  # in evaluation, alone on the GPU

    @property
    def rollout(self) -> int:
        """Bytes while the engine samples for the trainer."""
        return self.step.at_rest + self.sampler.total

    @property
    def update(self) -> int:
        """Bytes at the peak of an update; an engine that does not sleep keeps what it has."""
        return self.step.total + (self.sampler.total if self.sampler.stays else 0)


def case(
    shape: Shape, model: Model, training: Training, evaluation: Evaluation, gpu: Gpu, step: StepMemory | None = None
) -> Case:
    """What a model's jobs take. step: where it is known already."""
    step = step or train_step(shape, model, training)
    longest = training.max_prompt_tokens + evaluation.max_tokens
    return Case(
        model,
        training,
        step,
        sampler(shape, model, step.parameters, step.width, gpu.memory),
        sampler(shape, model, step.parameters, longest, gpu.memory),
    )


def faults(made: Case, gpu: Gpu) -> list[str]:
    """Why a case does not fit; empty if it does."""
    room, out = gpu.usable, []
    if made.update > room:
        out.append(f"an update takes {_gib(made.update)} of {_gib(room)} usable")
    if made.rollout > room:
        out.append(f"sampling beside the trainer's state takes {_gib(made.rollout)} of {_gib(room)} usable")
    for use, engine in (("training", made.sampler), ("evaluation", made.evaluator)):
        if engine.cache < engine.one_response:
            out.append(
                f"in {use} the engine's share leaves {_gib(max(engine.cache, 0))} for keys and values; one response "
                f"takes {_gib(engine.one_response)}"
            )
        if engine.total > room:
            out.append(f"in {use} the engine takes {_gib(engine.total)} of {_gib(room)} usable")
    return list(dict.fromkeys(out))


@dataclass(frozen=True)
class Change:
    """Settings to try. engine: one of many for the engine, of which the first that suffices is enough."""

    what: str
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    engine: bool = False


class Search:
    """Tries changes of one model's settings on one GPU; a training step is taken once for each that touches it."""

    def __init__(self, name: str, shape: Shape, made: Case, evaluation: Evaluation, gpu: Gpu):
        self.name, self.shape, self.made, self.evaluation, self.gpu = name, shape, made, evaluation, gpu
        self.steps = {_step_key(made.model, made.training): made.step}

    def found(self) -> list[str]:
        """Changes that make it fit: those that suffice alone, else the first together that do; empty if none do."""
        changes = list(_changes(self.name, self.made))
        engine = [c for c in changes if c.engine]
        others = [c for c in changes if not c.engine]
        alone = [c.what for c in others if self.fits([c])]
        alone += [c.what for c in engine if self.fits([c])][:1]
        if alone:
            return alone
        for count in range(1, len(others) + 1):
            for more in ([], *([c] for c in engine)):
                if self.fits([*others[:count], *more]):
                    return [" and ".join(c.what for c in [*others[:count], *more])]
        return []

    def fits(self, changes: Sequence[Change]) -> bool:
        return not faults(self.tried(changes), self.gpu)

    def tried(self, changes: Sequence[Change]) -> Case:
        model, training = self.made.model, self.made.training
        for change in changes:
            model = model.model_copy(update=change.model)
            training = training.model_copy(update=change.training)
        key = _step_key(model, training)
        made = case(self.shape, model, training, self.evaluation, self.gpu, self.steps.get(key))
        self.steps[key] = made.step
        return made

    def least(self) -> int:
        """Bytes of the smallest update that was tried."""
        return min(step.total for step in self.steps.values())


def _changes(name: str, made: Case) -> Iterator[Change]:
    """Mildest first: the last one makes another study."""
    model, t, at = made.model, made.training, f"models.{name}."
    width = made.step.width
    if made.step.rows > 1:
        yield Change(f"training.microbatch_tokens: {width}", training={"microbatch_tokens": width})
    if not model.gradient_checkpointing:
        yield Change(f"{at}gradient_checkpointing: true", {"gradient_checkpointing": True})
    if t.score_tile > SMALLEST_TILE:
        tile = max(SMALLEST_TILE, t.score_tile // 8)
        yield Change(f"training.score_tile: {tile}", training={"score_tile": tile})
    if isinstance(model.engine, Vllm):
        parts = 2 * model.engine.tensor_parallel
        for share in SHARES:
            engine = model.engine.model_copy(update={"gpu_share": share})
            yield Change(f"{at}engine.gpu_share: {share}", {"engine": engine}, engine=True)
        for share in SHARES:
            engine = model.engine.model_copy(update={"gpu_share": share, "tensor_parallel": parts})
            what = f"{at}engine.tensor_parallel: {parts} and {at}engine.gpu_share: {share}"
            yield Change(what, {"engine": engine}, engine=True)
    if model.adapter.kind == "full":
        lora = model.adapter.model_copy(update={"kind": "lora"})
        yield Change(f"{at}adapter.kind: lora (another study)", {"adapter": lora})


def _step_key(model: Model, training: Training) -> str:
    return model.model_dump_json(exclude={"engine"}) + training.model_dump_json()


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"

"""Tokens, FLOPs and disk of every rule, counted from the grid.

Counts are upper bounds where only a run can tell: responses are `length` tokens (default: the limit), every row of a
rollout learns, every span that may be probed is. A multiplication and an addition are two FLOPs; a backward pass costs
two forward passes, or one where only an adapter learns (gradients of frozen weights are not computed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tokencredit.plan.memory import StepMemory
from tokencredit.plan.shapes import Shape
from tokencredit.study.analyses import Completion, Fidelity, Filtered, Panel
from tokencredit.study.config import Study
from tokencredit.study.grid import analyses, cells, evaluations
from tokencredit.study.methods import Method, OracleCredit, SemifactualCredit, SpanCredit
from tokencredit.study.registry import entries
from tokencredit.study.sources import MadeProblems, ProblemSource, RegistryProblems, SyntheticProblems

TEXT = 4  # bytes of text a token stands for (ours: about what English and LaTeX take, uncompressed)
FILTER_ARMS = 3  # of d-filtered decoding's controls: random, greedy, temperature


@dataclass(frozen=True)
class Work:
    """What jobs of one kind do. FLOPs in passes over whole sequences, and in decoding token by token; disk in bytes."""

    rule: str
    model: str
    what: str
    jobs: int = 0
    generated: int = 0  # tokens
    passes: float = 0.0
    decoding: float = 0.0
    disk: int = 0
    unknown: str = ""  # what could not be counted

    def __add__(self, other: Work) -> Work:
        return replace(
            self,
            jobs=self.jobs + other.jobs,
            generated=self.generated + other.generated,
            passes=self.passes + other.passes,
            decoding=self.decoding + other.decoding,
            disk=self.disk + other.disk,
            unknown=self.unknown or other.unknown,
        )


@dataclass(frozen=True)
class Flops:
    """FLOPs of one model, from its shape and the parameters of its layers."""

    shape: Shape
    matrices: int

    @property
    def _attention(self) -> int:
        """Of one query and one key: their product, and the sum of values."""
        return 4 * self.shape.layers * self.shape.heads * self.shape.head_dim

    @property
    def _head(self) -> int:
        return 2 * self.shape.vocab * self.shape.hidden

    def sequence(self, prompt: float, response: float) -> float:
        """A forward pass over a sequence whose response is scored; attention is causal."""
        length = prompt + response
        return 2 * self.matrices * length + self._head * response + self._attention * length**2 / 2

    def decode(self, prompt: float, response: float) -> float:
        """Sampling a response token by token; the prompt's own pass is not in it."""
        return response * (2 * self.matrices + self._head + self._attention * (prompt + response / 2))


def work(
    study: Study, shapes: dict[str, Shape], steps: dict[str, StepMemory], length: int | None = None
) -> Iterator[Work]:
    """One Work per rule, model and what it is about, in the order of the workflow. length: mean response tokens."""
    flops = {m: Flops(shapes[m], steps[m].matrices) for m in study.grid.models}
    for model in study.grid.models:
        yield Work("base", model, "weights", jobs=1)
    for model in study.grid.models:
        for method in study.grid.methods:
            runs = sum(1 for c in cells(study) if (c.model, c.method) == (model, method))
            yield _train(study, model, method, flops[model], steps[model], length, runs)
    yield from _evaluations(study, flops, length)
    yield from _analyses(study, flops, length)


def _train(
    study: Study, model: str, method: str, flops: Flops, step: StepMemory, length: int | None, runs: int
) -> Work:
    t, settings = study.training, study.models[model]
    prompt, response = t.max_prompt_tokens, _mean(t.max_tokens, length)
    rows = t.rollouts * t.prompts * t.group
    forward = flops.sequence(prompt, response)
    update = 3.0 if settings.adapter.kind == "full" else 2.0
    update += 1.0 if settings.gradient_checkpointing else 0.0
    passes = rows * forward * (1 + update + _probes(study.methods[method], t.steps))
    generated, decoding = rows * response, rows * flops.decode(prompt, response)
    oracle = study.methods[method].of("oracle")
    if isinstance(oracle, OracleCredit):
        more = rows * response * oracle.samples
        generated += int(more * response / 2)
        decoding += more * flops.decode(prompt + response / 2, response / 2)
    passes += t.rollouts * t.prompts * flops.sequence(prompt, 0)
    exports = len(t.evaluated_steps) * 4 * step.trained
    states = 2 * 12 * step.trained  # the newest two: weights and both moments
    one = Work("train", model, method, 1, generated, passes, decoding, exports + states + rows * response * TEXT)
    return replace(
        one, jobs=runs, generated=generated * runs, passes=passes * runs, decoding=decoding * runs, disk=one.disk * runs
    )


def _probes(method: Method, steps: int) -> float:
    """Forward passes over the rollout beside the score pass, a mean over the run."""
    out = 0.0
    semifactual, spans = method.of("semifactual"), method.of("spans")
    if isinstance(semifactual, SemifactualCredit):
        out += len(semifactual.kinds) * min(1.0, semifactual.steps / steps)
    if isinstance(spans, SpanCredit):
        out += spans.spans
    return out


def _evaluations(study: Study, flops: dict[str, Flops], length: int | None) -> Iterator[Work]:
    e = study.evaluation
    prompt, response = study.training.max_prompt_tokens, _mean(e.max_tokens, length)
    found: dict[tuple[str, str], Work] = {}
    for cell, _, name in evaluations(study):
        count = problems(study.benchmarks[name].source)
        samples = (count or 0) * study.benchmarks[name].samples
        made = Work(
            "evaluate",
            cell.model,
            name,
            jobs=1,
            generated=samples * response,
            passes=(count or 0) * flops[cell.model].sequence(prompt, 0),
            decoding=samples * flops[cell.model].decode(prompt, response),
            disk=samples * response * TEXT,
            unknown="" if count else f"benchmarks.{name}: its number of problems (expect_rows)",
        )
        key = (cell.model, name)
        found[key] = found[key] + made if key in found else made
    yield from found.values()


def _analyses(study: Study, flops: dict[str, Flops], length: int | None) -> Iterator[Work]:
    found: dict[tuple[str, str], Work] = {}
    for name, cell, _ in analyses(study):
        made = _analysis(study, name, cell.model, flops[cell.model], length)
        key = (cell.model, name)
        found[key] = found[key] + made if key in found else made
    yield from found.values()


def _analysis(study: Study, name: str, model: str, flops: Flops, length: int | None) -> Work:
    """A look into one policy."""
    look, prompt = study.analyses[name], study.training.max_prompt_tokens
    response = _mean(look.max_tokens, length)
    forward, decode = flops.sequence(prompt, response), flops.decode(prompt, response)
    if isinstance(look, Panel):
        samples = look.count
        passes, decoding = samples * forward * (1 + len(look.kinds)), samples * decode
    elif isinstance(look, Filtered):
        streams = 1 + len(look.kinds)  # the clean prompt's and each perturbed one's
        arms = 2 + FILTER_ARMS * look.controls
        samples = look.count * look.samples * arms
        passes, decoding = look.count * arms * flops.sequence(prompt, 0), decode * samples * (1 + (streams - 1) / arms)
    elif isinstance(look, Fidelity):
        drawn = look.count * study.training.group
        positions = look.responses * response * look.samples
        samples = drawn + positions // 2  # a continuation is half a response in the mean
        passes = drawn * forward * (1 + sum(_probes(m, 1) for m in _methods(study)))
        decoding = drawn * decode + positions * flops.decode(prompt + response / 2, response / 2)
    else:
        assert isinstance(look, Completion)
        samples = sum(min(look.count, problems(_source(study, s)) or look.count) for s in look.sets)
        passes, decoding = samples * flops.sequence(prompt, 0), samples * decode
    return Work(look.kind, model, name, 1, samples * response, passes, decoding, samples * response * TEXT)


def _methods(study: Study) -> list[Method]:
    return [study.methods[m] for m in study.grid.methods]


def _source(study: Study, name: str) -> ProblemSource:
    return study.problems if name == "train" else study.benchmarks[name].source


def _mean(limit: int, length: int | None) -> int:
    return limit if length is None else min(length, limit)


def problems(source: ProblemSource) -> int | None:
    """How many problems a source has, as far as that can be known without opening it."""
    if isinstance(source, SyntheticProblems):
        return source.size
    if isinstance(source, RegistryProblems):
        entry = entries()[source.name]
        return source.size or source.expect_rows or entry.usable or entry.rows
    if isinstance(source, MadeProblems):
        parts = [problems(part) for part in source.parts.values()]
        return source.size or (sum(p for p in parts if p) if all(parts) else None)
    return getattr(source, "size", None) or getattr(source, "expect_rows", None)

"""The plan of a study, as text and as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokencredit.plan.gpus import GIB, Gpu
from tokencredit.plan.remedies import Case, Search, case, faults
from tokencredit.plan.shapes import Shape, shape_of
from tokencredit.plan.work import Work, work
from tokencredit.study.config import Study

UNITS = {"GiB": GIB, "MiB": 2**20}


@dataclass(frozen=True)
class Rates:
    """Utilisation of the GPU's peak: in passes over whole sequences, and in decoding, which waits for memory."""

    mfu: float
    decode_mfu: float

    def hours(self, done: Work, gpu: Gpu) -> float | None:
        """GPU hours, where the GPU's peak is known."""
        if gpu.flops is None:
            return None
        return (done.passes / self.mfu + done.decoding / self.decode_mfu) / gpu.flops / 3600


@dataclass(frozen=True)
class Plan:
    study: Study
    gpu: Gpu
    rates: Rates
    length: int | None
    shapes: dict[str, Shape]
    cases: dict[str, Case]
    work: list[Work]

    @property
    def faults(self) -> dict[str, list[str]]:
        """Model -> why it does not fit; only those that do not."""
        return {m: found for m, c in self.cases.items() if (found := faults(c, self.gpu))}

    def search(self, model: str) -> Search:
        """For settings that make a model fit."""
        return Search(model, self.shapes[model], self.cases[model], self.study.evaluation, self.gpu)


def plan(study: Study, gpu: Gpu, rates: Rates, length: int | None = None, where: str = "study") -> Plan:
    """Work a study out; nothing is fetched, opened or run. Raises UserError for a model of unknown shape."""
    shapes = {m: shape_of(study.models[m].source, f"{where}: models.{m}") for m in study.grid.models}
    cases = {m: case(shapes[m], study.models[m], study.training, study.evaluation, gpu) for m in study.grid.models}
    done = list(work(study, shapes, {m: c.step for m, c in cases.items()}, length))
    return Plan(study, gpu, rates, length, shapes, cases, done)


def values(made: Plan) -> dict[str, Any]:
    """All of it, as JSON: bytes, tokens, FLOPs, hours."""
    return {
        "study": made.study.study,
        "gpu": asdict(made.gpu) | {"usable": made.gpu.usable},
        "rates": asdict(made.rates),
        "length": made.length,
        "memory": {
            m: {
                "parts": asdict(c.step),
                "sampler": asdict(c.sampler),
                "update": c.update,
                "rollout": c.rollout,
                "shape": made.shapes[m].known_from,
                "faults": made.faults.get(m, []),
            }
            for m, c in made.cases.items()
        },
        "work": [asdict(w) | {"hours": made.rates.hours(w, made.gpu)} for w in made.work],
    }


def text(made: Plan) -> Iterator[str]:
    """The plan's lines."""
    s, gpu = made.study, made.gpu
    yield f"{s.study}: {s.title}".rstrip(": ")
    yield f"GPU {gpu.name}: {_gib(gpu.memory)}, of which {_gib(gpu.usable)} are counted on; nothing was run."
    long = f"{made.length} tokens on average" if made.length else "at their limit, which is an upper bound (--length N)"
    yield f"Responses {long}."
    yield ""
    unit = "GiB" if max(c.update for c in made.cases.values()) > GIB / 10 else "MiB"
    yield f"Memory of one GPU at the limits of prompt and response, {unit}"
    heads = ("model", "weights", "gradients", "optimiser", "activations", "scores", "update", "sampling", "KV cache")
    yield from _table(heads, [_memory(m, c, unit) for m, c in made.cases.items()])
    for model, c in made.cases.items():
        size = f"{c.step.parameters / 1e6:,.2f} million parameters, {c.step.trained / 1e6:,.2f} trained"
        batch = f"micro-batch {c.step.rows} x {c.step.width} tokens"
        yield f"{model}: {size}; {batch}; shape: {made.shapes[model].known_from}"
    yield ""
    hours = f"GPU hours at MFU {made.rates.mfu:g} ({made.rates.decode_mfu:g} in decoding)"
    yield f"Work; {hours}" if gpu.flops else "Work (the peak of this GPU is not known, so no hours)"
    rows = [_work(made, w) for w in made.work if w.rule != "base"]
    yield from _table(("rule", "model", "of", "jobs", "tokens", "FLOPs", "GPU h", "disk GB"), [*rows, _total(made)])
    for line in dict.fromkeys(w.unknown for w in made.work if w.unknown):
        yield f"not counted: {line}"


def verdict(made: Plan) -> list[str]:
    """What does not fit, and what would make it fit; empty if all fits."""
    out = []
    for model, found in made.faults.items():
        out += [f"{model} does not fit {made.gpu.name}: {fault}" for fault in found]
        search = made.search(model)
        said = "; or ".join(search.found())
        least = f"{model}: nothing that was tried makes it fit; the smallest update takes {_gib(search.least())}"
        out.append(f"{model} would fit with {said}" if said else least)
    return out


def _memory(model: str, c: Case, unit: str) -> list[str]:
    parts = (c.step.weights, c.step.gradients, c.step.optimizer, c.step.activations, c.step.scores)
    sizes = (*parts, c.update, c.rollout, max(c.sampler.cache, 0))
    return [model, *(f"{size / UNITS[unit]:,.2f}" for size in sizes)]


def _work(made: Plan, w: Work) -> list[str]:
    return [w.rule, w.model, w.what, *_counts(made, w)]


def _total(made: Plan) -> list[str]:
    whole = Work("all", "", "")
    for w in made.work:
        whole += w
    return [whole.rule, "", "", *_counts(made, whole)]


def _counts(made: Plan, w: Work) -> list[str]:
    hours = made.rates.hours(w, made.gpu)
    shown = "-" if hours is None else f"{hours:,.3g}" if hours < 100 else f"{hours:,.0f}"
    return [f"{w.jobs:,}", f"{w.generated:.3g}", f"{w.passes + w.decoding:.3g}", shown, f"{w.disk / 1e9:,.3g}"]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need; text to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    words = [head in ("model", "rule", "of") for head in heads]
    for row in (heads, *rows):
        cells = (v.ljust(w) if left else v.rjust(w) for v, w, left in zip(row, widths, words, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()


def _gib(size: int) -> str:
    return f"{size / GIB:,.4g} GiB"

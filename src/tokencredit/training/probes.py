"""What a method asks of the rollout policy beyond the score pass: perturbed prompts, masked spans, Monte Carlo effects.

Everything runs with the weights before the update, without gradient, and only where a method wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tokencredit.credit import Signals, Span, probed_kinds
from tokencredit.grading import Grader
from tokencredit.model.policy import Policy
from tokencredit.model.prompts import Prompter
from tokencredit.sampling import Engine
from tokencredit.study.config import Training
from tokencredit.study.engines import Vllm
from tokencredit.study.errors import UserError
from tokencredit.study.methods import Method, OracleCredit, SpanCredit
from tokencredit.training.rollout import Rollout
from tokencredit.training.spans import answer_start, find_spans
from tokencredit.training.stop import timed
from tokencredit.training.values import prefix_values, text_grade

Effects = Callable[[Rollout, Tensor, Tensor, OracleCredit], Tensor]
Prompts = Sequence[Sequence[int]]
Forced = Callable[[Prompts, Prompts], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Sources:
    """Where probes get what they need. A method that asks for something absent raises UserError."""

    perturbed: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)  # (problem id, kind) -> prompt
    pieces: Callable[[Sequence[int]], list[str]] | None = None  # text of each token of a response
    effects: Effects | None = None  # (rollout, old [N, T], rows wanted [N], settings) -> effects [N, T]
    forced: Forced | None = None  # (prompts, responses) -> log-probabilities by the engine, in place of the score pass
    notes: dict[str, float] = field(default_factory=dict)  # what probes have to say of themselves: metrics


def microbatches(lengths: Sequence[int], rows: Sequence[int], budget: int) -> list[list[int]]:
    """Rows in batches of at most `budget` padded tokens (one row at least), longest first.

    >>> microbatches([5, 3, 4, 1], [0, 1, 2, 3], 10)
    [[0, 2], [1, 3]]
    """
    batches: list[list[int]] = []
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def unflatten(flat: Tensor, mask: Tensor) -> Tensor:
    """[M] in row order to [B, T] with 0 at padding; carries the gradient."""
    table = flat.new_zeros(mask.shape)
    table[mask] = flat
    return table


def gather(
    policy: Policy,
    rollout: Rollout,
    method: Method,
    budget: int,
    step: int,
    scores: tuple[Tensor, Tensor, Tensor],
    advantage: Tensor,
    sources: Sources,
    clock: dict[str, float],
) -> Signals:
    """All that the method's credits may read.

    scores: (log-probability, entropy, margin) of the score pass, [N, T]; advantage [N]: rows at 0 are not probed for
    credits that only reweight; budget: padded tokens of one forward pass; step: of the first update (1-based).
    """
    old, entropy, margin = scores
    perturbed = spans = answers = effect = None
    kinds = probed_kinds(method, step)
    counted = method.of("spans")
    oracle = method.of("oracle")
    with timed(clock, "probe") if kinds or counted or oracle else nullcontext():
        if kinds:
            perturbed = perturbed_logprobs(policy, rollout, kinds, sources.perturbed, budget, sources.forced)
            if sources.forced is not None:
                gap = engine_gap(policy, rollout, kinds, sources.perturbed, budget, perturbed)
                sources.notes.update({"probe/engine_gap": gap.mean, "probe/engine_gap_max": gap.largest})
        if isinstance(counted, SpanCredit):
            if sources.pieces is None:
                raise UserError("counterfactual spans need the text of each token")
            spans, answers = masked_spans(policy, rollout, old, advantage, counted, sources.pieces, budget)
        if isinstance(oracle, OracleCredit):
            if sources.effects is None:
                raise UserError("oracle credit needs a sampler and a grader")
            effect = sources.effects(rollout, old, advantage != 0, oracle)
    return Signals(
        rollout.mask, rollout.groups, old, margin, entropy, perturbed, step, rollout.row_seeds, spans, answers,
        rollout.rewards, effect,
    )  # fmt: skip


def perturbed_logprobs(
    policy: Policy,
    rollout: Rollout,
    kinds: Sequence[str],
    prompts: Mapping[tuple[str, str], tuple[int, ...]],
    budget: int,
    forced: Forced | None = None,
) -> Tensor:
    """Log-probabilities [K, N, T] of the sampled tokens under the perturbed prompts; NaN where a problem lacks a kind.

    Same weights, same response prefix, teacher-forced, no generation; the K prompts of all responses are batched
    together by length. forced: what reads them in place of the policy.
    """
    mask = rollout.mask
    out = torch.full((len(kinds), *mask.shape), torch.nan, dtype=policy.precision)
    jobs = _jobs(rollout, kinds, prompts)
    if forced is not None:
        read = forced([ids for _, _, ids in jobs], [rollout.responses[row] for _, row, _ in jobs])
        for (k, row, _), logprobs in zip(jobs, read, strict=True):
            out[k, row, mask[row]] = torch.tensor(logprobs, dtype=out.dtype)
            out[k, row, ~mask[row]] = 0.0
        return out
    for batch in _batches(rollout, jobs, budget):
        ks, rows, flat = _read(policy, rollout, [jobs[j] for j in batch])
        out[ks, rows] = unflatten(flat, mask[rows])
    return out


@dataclass(frozen=True)
class EngineGap:
    """|difference| of the engine's and the trainer's log-probabilities under perturbed prompts, in nats."""

    mean: float
    largest: float
    tokens: int


def engine_gap(
    policy: Policy,
    rollout: Rollout,
    kinds: Sequence[str],
    prompts: Mapping[tuple[str, str], tuple[int, ...]],
    budget: int,
    perturbed: Tensor,
) -> EngineGap:
    """The trainer reads one micro-batch of what the engine read (perturbed [K, N, T]): the longest rows."""
    jobs = _jobs(rollout, kinds, prompts)
    batches = _batches(rollout, jobs, budget)
    if not batches:
        return EngineGap(0.0, 0.0, 0)
    ks, rows, flat = _read(policy, rollout, [jobs[j] for j in batches[0]])
    gap = (perturbed[ks, rows][rollout.mask[rows]] - flat).abs().double()
    return EngineGap(gap.mean().item(), gap.max().item(), gap.numel())


Job = tuple[int, int, tuple[int, ...]]  # kind, row, the row's prompt of that kind


def _jobs(rollout: Rollout, kinds: Sequence[str], prompts: Mapping[tuple[str, str], tuple[int, ...]]) -> list[Job]:
    group = len(rollout.responses) // len(rollout.problems)
    return [
        (k, row, ids)
        for k, kind in enumerate(kinds)
        for row in range(len(rollout.responses))
        if (ids := prompts.get((rollout.problems[row // group]["problem_id"], kind))) is not None
    ]


def _batches(rollout: Rollout, jobs: Sequence[Job], budget: int) -> list[list[int]]:
    return microbatches([len(ids) + len(rollout.responses[row]) for _, row, ids in jobs], range(len(jobs)), budget)


def _read(policy: Policy, rollout: Rollout, jobs: Sequence[Job]) -> tuple[Tensor, Tensor, Tensor]:
    """(kinds [B], rows [B], the policy's log-probabilities [M], row after row)."""
    with torch.no_grad():
        s = policy.score([ids for _, _, ids in jobs], [rollout.responses[row] for _, row, _ in jobs], "probe")
    ks, rows = (torch.tensor([job[i] for job in jobs]) for i in (0, 1))
    return ks, rows, s.logprob.cpu()


def probing(engine: Engine, settings: Any) -> Forced | None:
    """What reads perturbed prompts in place of the trainer, where the engine's settings want that."""
    wanted = isinstance(settings, Vllm) and settings.probes == "engine"
    return engine.forced if wanted else None  # type: ignore[attr-defined]


def masked_spans(
    policy: Policy,
    rollout: Rollout,
    old: Tensor,
    advantage: Tensor,
    settings: SpanCredit,
    pieces: Callable[[Sequence[int]], list[str]],
    budget: int,
) -> tuple[list[list[Span]], list[int | None]]:
    """Per response, its spans with the drop of log p(answer) when no token attends to them, and its answer's start.

    Rows with advantage 0 are passed over: whatever their weights, they learn nothing.
    """
    texts = [pieces(tokens) for tokens in rollout.responses]
    answers = [answer_start(t) if bool(a) else None for t, a in zip(texts, advantage, strict=True)]
    jobs = [
        (row, span)
        for row, answer in enumerate(answers)
        if answer is not None
        for span in find_spans(texts[row], answer, settings)
    ]
    lengths = [len(rollout.prompts[row]) + len(rollout.responses[row]) for row, _ in jobs]
    spans: list[dict[tuple[int, int], Span]] = [{} for _ in answers]
    with torch.no_grad():
        for batch in microbatches(lengths, range(len(jobs)), budget):
            rows, unseen = [jobs[j][0] for j in batch], [jobs[j][1] for j in batch]
            starts = [answers[row] or 0 for row in rows]
            prompts, responses = ([table[row] for row in rows] for table in (rollout.prompts, rollout.responses))
            flat = policy.score(prompts, responses, "probe", starts, unseen).logprob.double().cpu()
            parts = flat.split([len(r) - s for r, s in zip(responses, starts, strict=True)])
            for row, span, start, part in zip(rows, unseen, starts, parts, strict=True):
                whole = old[row, start : len(rollout.responses[row])].double().sum()
                spans[row][span] = Span(*span, (whole - part.sum()).item())
    found = [[s[key] for key in sorted(s)] for s in spans]
    return found, answers


def monte_carlo(
    engine: Engine, prompter: Prompter, grader: Grader, eos: tuple[int, ...], training: Training
) -> Effects:
    """Effects of a rollout's positions by continuations of the policy that made it (training/values.py)."""

    def effects(rollout: Rollout, old: Tensor, wanted: Tensor, settings: OracleCredit) -> Tensor:
        out = torch.full(old.shape, torch.nan, dtype=torch.float64)
        rows = torch.nonzero(wanted).flatten().tolist()
        if not rows:
            return out
        group = len(rollout.responses) // len(rollout.problems)

        def of(table: Sequence[Any]) -> list[Any]:
            return [table[row] for row in rows]

        values = prefix_values(
            engine,
            of(rollout.prompts),
            of(rollout.responses),
            of(rollout.finish),
            of(rollout.correct.tolist()),
            [rollout.problems[row // group] for row in rows],
            text_grade(prompter, grader),
            samples=settings.samples,
            eos=eos,
            max_tokens=training.max_tokens,
            seeds=of(rollout.row_seeds),
            logprobs=[old[row, : len(rollout.responses[row])].tolist() for row in rows],
            tolerance=settings.tolerance,
            temperature=training.temperature,
        )
        width = values.mask.shape[1]
        out[rows, :width] = torch.where(values.mask, values.effect, torch.nan)
        return out

    return effects

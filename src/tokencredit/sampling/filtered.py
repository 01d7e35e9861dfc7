"""d-filtered decoding (SCAPO, arXiv 2609.40360, section 3): plain sampling without the candidates that drift most.

At every step the next-token distributions under the clean and the K perturbed prompts of a problem give each
candidate's drift, and masking.py the mask. A token is proposed from the clean distribution with the number that
plain sampling would use; where the mask holds it, it is rejected and another one is drawn from the rest with a
number of a second stream. That is a draw from the clean distribution renormalised over the rest, and a step without
a rejection is the plain sample's. Temperature 1, top-p 1.
A response takes K + 1 rows, one per prompt, that all receive its tokens; how rows live is the engine's (lanes.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokencredit.sampling.draw import draw, noise
from tokencredit.sampling.lanes import Lanes, Prompt, make_lanes, vocabulary
from tokencredit.sampling.masking import (
    candidate_drift,
    drift_mask,
    entropies,
    masked_mass,
    random_mask,
    tempered_entropies,
)
from tokencredit.sampling.types import Engine, Params, Request, check_requests
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive

LOGITS_AT_ONCE = 1 << 24  # rows x vocabulary: many, since each product reads the whole head
MASKED_AT_ONCE = {"cpu": 1 << 20}  # and few, so that what is made of them stays in the cache
MASKED_AT_ONCE_ELSEWHERE = 1 << 24
PLAIN = Params(max_tokens=1)


@dataclass(frozen=True)
class FilteredRequest:
    """One response. prompts: the clean one first, then its perturbations, in a fixed order; one or more."""

    prompts: tuple[Prompt, ...]
    seed: int  # as Request.seed: the plain sample of the same seed is its twin


@dataclass(frozen=True)
class Filter:
    """order: "drift" masks by falling drift; "random" masks by chance as much as the drift mask would at that step."""

    max_tokens: int
    cap: float = 0.8
    order: Literal["drift", "random"] = "drift"
    eos: tuple[int, ...] = ()
    temperatures: tuple[float, ...] = ()  # at which the clean distribution's entropy is noted

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"filtered decoding: max_tokens is {self.max_tokens}, must be at least 1")
        if not 0 <= self.cap < 1:
            raise UserError(f"filtered decoding: cap is {self.cap}, must lie in [0, 1)")
        if not all(t > 0 for t in self.temperatures):
            raise UserError("filtered decoding: temperatures must be positive")


@dataclass(frozen=True)
class FilteredCompletion:
    """Means are over the response's steps; entropies in nats, of the distribution at temperature 1."""

    tokens: tuple[int, ...]
    finish: str  # "stop": the last token is an EOS id | "length"
    rejected: tuple[tuple[int, int], ...]  # (step, proposed token) of every proposal that was refused
    budget: float  # clean probability that the drift mask takes
    masked_mass: float  # that was masked: the budget, or what a random mask could fill of it
    clean_entropy: float
    entropy: float  # of what is left, renormalised
    tempered: tuple[float, ...]  # entropy of the clean distribution at each of Filter.temperatures


def generate_filtered(
    engine: Engine,
    requests: Sequence[FilteredRequest],
    rule: Filter,
    progress: Callable[[int], object] = lambda done: None,
) -> list[FilteredCompletion]:
    """One completion per request, in the requests' order; `progress` is told how many more are done.

    Deterministic in the requests' seeds, and independent of the batch up to float rounding, as Engine says. Raises
    UserError for a prompt the model cannot take, Unsupported for an engine or a model without a usable cache.
    """
    if not requests:
        return []
    if not all(len(r.prompts) > 1 for r in requests):
        raise UserError("filtered decoding: a request has no perturbed prompt, so nothing drifts; leave it out")
    check_requests([Request(p, 0) for r in requests for p in r.prompts], vocabulary(engine))
    found: dict[int, FilteredCompletion] = {}
    by_width: defaultdict[int, list[int]] = defaultdict(list)  # rows of one run take equally many prompts
    for i, request in enumerate(requests):
        by_width[len(request.prompts)].append(i)
    for width in sorted(by_width):
        chosen = [requests[i] for i in by_width[width]]
        with make_lanes(engine, [r.prompts for r in chosen], rule.max_tokens) as lanes:
            found.update(zip(by_width[width], _Run(lanes, chosen, rule, progress).finish(), strict=True))
    return [found[i] for i in range(len(requests))]


@dataclass
class _Live:
    """One response in flight."""

    index: int  # of its request
    seed: int
    tokens: list[int] = field(default_factory=list)
    rejected: list[tuple[int, int]] = field(default_factory=list)


class _Run:
    """Requests of one width, from prompts to the last finished response. Live responses are 0..n-1 everywhere."""

    def __init__(
        self, lanes: Lanes, requests: Sequence[FilteredRequest], rule: Filter, progress: Callable[[int], object]
    ) -> None:
        self.lanes, self.requests, self.rule, self.progress = lanes, requests, rule, progress
        self.waiting = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompts[0]), requests[i].prompts))
        self.completions: list[FilteredCompletion | None] = [None] * len(requests)
        self.live: list[_Live] = []
        device = lanes.device
        self.eos = set(rule.eos)
        self.keep = torch.zeros(lanes.vocab, dtype=torch.bool, device=device)
        self.keep[[e for e in rule.eos if e < lanes.vocab]] = True
        self.proposal = torch.zeros(0, rule.max_tokens, dtype=torch.float64, device=device)  # numbers of every step
        self.second = self.proposal
        self.sums = torch.zeros(0, 4 + len(rule.temperatures), dtype=torch.float64, device=device)

    @torch.inference_mode()
    def finish(self) -> list[FilteredCompletion]:
        while self.waiting or self.live:
            free = self.lanes.room - len(self.live)
            if self.waiting and (not self.live or free >= self.lanes.refill):
                self._admit(free)
            else:
                last = torch.tensor([r.tokens[-1] for r in self.live], device=self.lanes.device)
                self._choose(self.lanes.step(last), 0)
        return [c for c in self.completions if c is not None]

    def _admit(self, free: int) -> None:
        """Take in the next requests and draw their first tokens."""
        taken, self.waiting = self.waiting[:free], self.waiting[free:]
        first = len(self.live)
        self.live += [_Live(i, self.requests[i].seed) for i in taken]
        seeds = [self.requests[i].seed for i in taken]
        self.proposal = torch.cat([self.proposal, self._numbers(seeds)])
        self.second = torch.cat([self.second, self._numbers([derive(s, "filtered", "second") for s in seeds])])
        self.sums = torch.cat([self.sums, self.sums.new_zeros(len(taken), self.sums.shape[1])])
        self._choose(self.lanes.admit([self.requests[i].prompts for i in taken]), first)

    def _numbers(self, seeds: Sequence[int]) -> Tensor:
        drawn = np.stack([noise(s, self.rule.max_tokens) for s in seeds])
        return torch.from_numpy(drawn).to(self.lanes.device)

    def _choose(self, hidden: Tensor, first: int) -> None:
        """Draw the next token of responses first..n-1 from hidden [rows W, ...], note it, let finished ones go."""
        width, vocab = self.lanes.width, self.lanes.vocab
        few = MASKED_AT_ONCE.get(self.lanes.device.type, MASKED_AT_ONCE_ELSEWHERE)
        many, few = (max(1, limit // (width * vocab)) for limit in (LOGITS_AT_ONCE, few))
        start = first
        for part in hidden.split(many * width):
            for logits in self.lanes.logits(part).view(-1, width, vocab).split(few):
                self._draw(logits, range(start, start + len(logits)))
                start += len(logits)
        done = [
            i
            for i, r in enumerate(self.live)
            if i >= first and (r.tokens[-1] in self.eos or len(r.tokens) == self.rule.max_tokens)
        ]
        if done:
            self._leave(done)

    def _draw(self, logits: Tensor, rows: Sequence[int]) -> None:
        """logits [n, W, V] of the responses `rows` -> one token and its notes for each."""
        live = [self.live[r] for r in rows]
        at = torch.tensor(list(rows), device=logits.device)
        step = torch.tensor([len(r.tokens) for r in live], device=logits.device)
        clean = logits[:, 0].contiguous()
        logprobs = logits.log_softmax(-1)
        probabilities = clean.softmax(-1)
        mask = drift_mask(probabilities, candidate_drift(logprobs), self.rule.cap, self.keep)
        budget = masked_mass(probabilities, mask)
        if self.rule.order == "random":
            mask = random_mask(probabilities, budget, self._keys(live), self.keep)
        notes = [budget, masked_mass(probabilities, mask), *entropies(logprobs[:, 0], probabilities, mask)]
        self.sums[at] += torch.cat([torch.stack(notes, 1), tempered_entropies(clean, self.rule.temperatures)], 1)
        tokens = draw(clean.clone(), self.proposal[at, step], PLAIN)[0]
        refused = mask.gather(1, tokens[:, None])[:, 0].nonzero()[:, 0]
        for i, token in zip(refused.tolist(), tokens[refused].tolist(), strict=True):
            live[i].rejected.append((len(live[i].tokens), token))
        if len(refused):
            rest = clean[refused].masked_fill_(mask[refused], -torch.inf)
            tokens[refused] = draw(rest, self.second[at, step][refused], PLAIN)[0]
        for row, token in zip(live, tokens.tolist(), strict=True):
            row.tokens.append(token)

    def _keys(self, live: Sequence[_Live]) -> Tensor:
        """Random keys [n, V] of each response's next step, from its seed."""
        seeds = [derive(r.seed, "filtered", "order", len(r.tokens)) for r in live]
        return torch.from_numpy(np.stack([noise(s, self.lanes.vocab) for s in seeds])).to(self.lanes.device)

    def _leave(self, done: Sequence[int]) -> None:
        """Write out finished responses and close their places."""
        for i, sums in zip(done, self.sums[list(done)].tolist(), strict=True):
            row = self.live[i]
            steps = len(row.tokens)
            means = [v / steps for v in sums]
            if not np.isfinite(means).all():
                raise FloatingPointError("sampling: an entropy is not finite; the model's logits are not")
            finish = "stop" if row.tokens[-1] in self.eos else "length"
            budget, mass, clean, left, *tempered = means
            self.completions[row.index] = FilteredCompletion(
                tuple(row.tokens), finish, tuple(row.rejected), budget, mass, clean, left, tuple(tempered)
            )
        kept = self.lanes.leave(done)
        self.live = [self.live[i] for i in kept]
        at = torch.tensor(kept, dtype=torch.int64, device=self.lanes.device)
        self.proposal, self.second, self.sums = self.proposal[at], self.second[at], self.sums[at]
        self.progress(len(done))

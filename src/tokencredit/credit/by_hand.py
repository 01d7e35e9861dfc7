"""A method worked out on a batch written by hand: `tokencredit credit METHOD BATCH.json`.

The same functions that train, in float64, on the whole batch as one optimiser step. For method authors and reviewers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from tokencredit.credit.advantage import group_advantage
from tokencredit.credit.objective import reduce, token_shares
from tokencredit.credit.signals import Signals, Span
from tokencredit.credit.table import (
    apply_credits,
    probed_kinds,
    selected_tokens,
    update_advantages,
    update_losses,
)
from tokencredit.study.base import Settings, parse
from tokencredit.study.errors import UserError
from tokencredit.study.methods import Method

Row = Annotated[tuple[float, ...], Field(strict=False)]
Table = Annotated[tuple[Row, ...], Field(strict=False)]
CORRECTIONS = ("semifactual",)  # credits that add to the advantage; all others multiply it


class SpanOf(Settings):
    start: Annotated[int, Field(ge=0)]
    stop: int
    drop: float


class Batch(Settings):
    """N responses of T tokens; tables are N x T, log-probabilities of the sampled tokens in nats."""

    old: Table
    new: Table
    mask: Annotated[tuple[Annotated[tuple[bool | int, ...], Field(strict=False)], ...], Field(strict=False)]
    rewards: Row
    groups: Annotated[tuple[int, ...], Field(strict=False)]
    margin: Table | None = None
    entropy: Table | None = None
    perturbed: Annotated[tuple[Table, ...], Field(strict=False)] | None = None  # K x N x T
    spans: Annotated[tuple[Annotated[tuple[SpanOf, ...], Field(strict=False)], ...], Field(strict=False)] | None = None
    answer_start: Annotated[tuple[int | None, ...], Field(strict=False)] | None = None
    effect: Table | None = None
    step: Annotated[int, Field(ge=1)] = 1  # optimisation step, 1-based
    row_seeds: Annotated[tuple[int, ...], Field(strict=False)] | None = None  # shuffled controls; default 0 .. N-1
    limit: Annotated[int, Field(ge=1)] | None = None  # response limit of the constant reduction; default T


NEEDS = {
    "margin": ("margin",),
    "semifactual": ("perturbed",),
    "spans": ("spans", "answer_start"),
    "entropy": ("entropy",),
    "oracle": ("effect",),
}


def compute(method: Method, values: Mapping[str, Any], where: str = "batch") -> dict[str, Any]:
    """Advantages, token credit, token losses, loss and gradient of one step, as plain lists.

    values: the fields of Batch. Raises UserError for a field that is missing, misshapen or not finite.
    """
    batch = parse(Batch, values, where)
    signals, new = _signals(batch, method, where)
    mask, old = signals.mask, signals.logprob
    advantage = group_advantage(_row(batch.rewards), signals.groups, method.advantage)
    tokens, _ = apply_credits(method, advantage, signals)
    selected, _ = selected_tokens(method, signals)
    shares = token_shares(selected, method.reduction, batch.limit or mask.shape[1])
    new.requires_grad_(True)
    losses, _ = update_losses(method, new, old, tokens, mask)
    loss = reduce(losses, selected, shares)
    loss.backward()
    assert new.grad is not None
    final, _ = update_advantages(method, new.detach(), old, tokens, mask)
    credited = torch.where(selected, final, 0.0)
    return {
        "advantages": advantage.tolist(),
        **_parts(method, advantage, signals, new.detach(), credited),
        "token_advantages": credited.tolist(),
        "token_loss": torch.where(selected, losses.detach(), 0.0).tolist(),
        "loss": loss.item(),
        "grad": new.grad.tolist(),
    }


def _parts(method: Method, advantage: Tensor, signals: Signals, new: Tensor, credited: Tensor) -> dict[str, Any]:
    """token_weights (of the credits that multiply) and token_correction (what is added to A w)."""
    mask, parts = signals.mask, {}
    weighting = method.model_copy(update={"credit": tuple(c for c in method.credit if c.kind not in CORRECTIONS)})
    weights = torch.ones_like(credited)
    if weighting.credit:
        one = torch.where(advantage == 0, 1.0, advantage)  # a response without advantage has weights all the same
        tokens, _ = apply_credits(weighting, one, signals)
        tokens, _ = update_advantages(weighting, new, signals.logprob, tokens, mask)
        weights = torch.where(selected_tokens(weighting, signals)[0], tokens / one[:, None], 0.0)
        parts["token_weights"] = weights.tolist()
    if len(weighting.credit) < len(method.credit):
        parts["token_correction"] = torch.where(mask, credited - advantage[:, None] * weights, 0.0).tolist()
    return parts


def _signals(batch: Batch, method: Method, where: str) -> tuple[Signals, Tensor]:
    """The batch as tensors, every shape checked against `old`."""
    n, width = len(batch.old), len(batch.old[0]) if batch.old else 0
    if not n or not width:
        raise UserError(f"{where}: old: at least one response of one token")

    def table(name: str, rows: Sequence[Sequence[float]]) -> Tensor:
        if len(rows) != n or any(len(row) != width for row in rows):
            got = f"{len(rows)} x {sorted({len(row) for row in rows})}"
            raise UserError(f"{where}: {name}: must be {n} x {width} like old, is {got}")
        return torch.tensor(rows, dtype=torch.float64)

    def column(name: str, values: Sequence[Any]) -> Sequence[Any]:
        if len(values) != n:
            raise UserError(f"{where}: {name}: must have {n} entries, one for each response, has {len(values)}")
        return values

    for credit in method.credit:
        wanted = NEEDS.get(credit.kind, ())
        if credit.kind == "semifactual" and not probed_kinds(method, batch.step):
            wanted = ()
        if credit.kind == "margin" and credit.signal == "entropy":
            wanted = ("entropy",)
        for name in wanted:
            if getattr(batch, name) is None:
                raise UserError(f"{where}: {name}: missing; {credit.kind} credit needs it")
    old, mask = table("old", batch.old), table("mask", batch.mask).bool()
    zeros = torch.zeros_like(old)
    lengths = mask.sum(-1)
    if not bool((mask == (torch.arange(width)[None] < lengths[:, None])).all()):
        raise UserError(f"{where}: mask: valid tokens must stand first in each row, padding after them")
    column("rewards", batch.rewards)
    return Signals(
        mask=mask,
        groups=torch.tensor(column("groups", batch.groups)),
        logprob=old,
        margin=zeros if batch.margin is None else table("margin", batch.margin),
        entropy=zeros if batch.entropy is None else table("entropy", batch.entropy),
        perturbed=None
        if batch.perturbed is None
        else torch.stack([table(f"perturbed[{k}]", rows) for k, rows in enumerate(batch.perturbed)]),
        step=batch.step,
        row_seeds=tuple(range(n)) if batch.row_seeds is None else tuple(column("row_seeds", batch.row_seeds)),
        spans=None if batch.spans is None else _spans(column("spans", batch.spans), lengths, where),
        answer_start=None if batch.answer_start is None else column("answer_start", batch.answer_start),
        rewards=_row(batch.rewards),
        effect=None if batch.effect is None else table("effect", batch.effect),
    ), table("new", batch.new)


def _spans(rows: Sequence[Sequence[SpanOf]], lengths: Tensor, where: str) -> list[list[Span]]:
    for row, spans in enumerate(rows):
        for span in spans:
            if not span.start < span.stop <= int(lengths[row]):
                raise UserError(
                    f"{where}: spans[{row}]: [{span.start}, {span.stop}) does not lie in the {int(lengths[row])} tokens"
                )
    return [[Span(s.start, s.stop, s.drop) for s in spans] for spans in rows]


def _row(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

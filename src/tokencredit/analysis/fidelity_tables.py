"""What credit fidelity knows of each measured response, and the tables it becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokencredit.analysis.fidelity_scores import Credited, Measured, Score, planted_only
from tokencredit.training.values import Values

# column of fidelity_tokens -> where it is found in Values; "first" and "second" are the halves
MEASURED = {
    "value": "value", "value_bound": "bound", "effect": "effect", "se": "effect_se", "variance": "effect_variance",
    "bound": "effect_bound", "effect_first": "first", "effect_second": "second", "drawn": "drawn",
}  # fmt: skip


@dataclass(frozen=True)
class Response:
    """One measured response. Arrays over its tokens [T]."""

    problem: str
    sample: int
    correct: bool
    pieces: list[str]
    categories: list[str]
    seen: Mapping[str, np.ndarray]  # logprob, margin, entropy, drift, moved; NaN where the problem lacks the probe
    values: Mapping[str, np.ndarray]  # the columns of MEASURED


def unpack(values: Values) -> list[dict[str, list[float]]]:
    """One dictionary of plain lists per response: the columns of MEASURED."""
    first, second = values.effect_halves
    tables = {"first": first, "second": second, **vars(values)}
    return [
        {column: tables[source][row, :size].tolist() for column, source in MEASURED.items()}
        for row, size in enumerate(values.mask.sum(1).tolist())
    ]


def planted(responses: Sequence[Response]) -> list[np.ndarray | None]:
    """Tokens that only a planted feature moved; None for responses to problems without one."""
    moved = [None if np.isnan(r.seen["moved"]).all() else r.seen["moved"] for r in responses]
    return planted_only(moved, [r.values["effect"] for r in responses], [r.values["se"] for r in responses])


def truths(responses: Sequence[Response]) -> list[Measured]:
    return [
        Measured(
            problem=r.problem,
            effect=r.values["effect"],
            se=r.values["se"],
            variance=r.values["variance"],
            halves=np.stack([r.values["effect_first"], r.values["effect_second"]]),
            sampled=r.values["drawn"] > 0,
            correct=r.correct,
            category=tuple(r.categories),
            planted=only,
        )
        for r, only in zip(responses, planted(responses), strict=True)
    ]


def tokens_table(responses: Sequence[Response]) -> pa.Table:
    """Rows of fidelity_tokens."""
    columns = _places(responses)
    columns["piece"] = [piece for r in responses for piece in r.pieces]
    columns["category"] = [category for r in responses for category in r.categories]
    columns["correct"] = [r.correct for r in responses for _ in r.pieces]
    for name in ("logprob", "margin", "entropy", "drift", "moved"):
        columns[name] = [None if math.isnan(x) else x for r in responses for x in r.seen[name].tolist()]
    columns["planted"] = [
        flag
        for r, only in zip(responses, planted(responses), strict=True)
        for flag in ([None] * len(r.pieces) if only is None else only.tolist())
    ]
    for name in MEASURED:
        columns[name] = [x for r in responses for x in r.values[name].tolist()]
    return _table("fidelity_tokens", columns)


def credits_table(responses: Sequence[Response], credits: Mapping[str, Sequence[Credited]]) -> pa.Table:
    """Rows of fidelity_credits: method after method."""
    places = _places(responses)
    columns: dict[str, list[Any]] = {name: places[name] * len(credits) for name in places}
    columns["method"] = [method for method in credits for _ in places["position"]]
    columns["advantage"] = [c.advantage for given in credits.values() for c in given for _ in c.token]
    columns["credit"] = [x for given in credits.values() for c in given for x in c.token.tolist()]
    return _table("fidelity_credits", columns)


def scores_table(scores: Mapping[str, Sequence[Score]]) -> pa.Table:
    """Rows of fidelity_scores."""
    rows = [(name, s) for name, several in scores.items() for s in several]
    columns: dict[str, list[Any]] = {
        "credit": [name for name, _ in rows],
        "score": [s.name for _, s in rows],
        "category": [s.category for _, s in rows],
        "n": [s.n for _, s in rows],
        "problems": [s.problems for _, s in rows],
    }
    for end in ("value", "low", "high"):
        columns[end] = [None if math.isnan(x := getattr(s, end)) else x for _, s in rows]
    return _table("fidelity_scores", columns)


def _places(responses: Sequence[Response]) -> dict[str, list[Any]]:
    return {
        "problem_id": [r.problem for r in responses for _ in r.pieces],
        "sample": [r.sample for r in responses for _ in r.pieces],
        "position": [t for r in responses for t in range(len(r.pieces))],
    }


def _table(name: str, columns: Mapping[str, list[Any]]) -> pa.Table:
    from tokencredit.study.tables import schema

    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema(name)})

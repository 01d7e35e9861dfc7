"""What completions say: per set the share reproduced, ROUGE-L and answers, and each set against one control.

That is the control with the highest ROUGE-L, written most like what the model knows: against a set that merely reads
differently, anything would look remembered.

One completion per problem, so that problems are independent: Wilson intervals of shares, Newcombe's of a difference of
two shares (Statistics in Medicine 17, 1998, method 10), Student's and Welch's for ROUGE-L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokencredit.evaluation.compare import wilson
from tokencredit.study.analyses import Completion

SHARES = ("exact", "answer")


def summarise(table: pa.Table, settings: Completion) -> dict[str, Any]:
    """{"sets": set -> measure -> value, low, high; "control": name; "against": set -> measure -> difference to it}."""
    names = np.asarray(table["set"].to_pylist(), dtype=object)
    columns = {m: table[m].to_numpy().astype(np.float64) for m in (*SHARES, "rouge_l")}
    controls = settings.controls or ()
    means = {name: float(columns["rouge_l"][names == name].mean()) for name in controls}
    nearest = max(means, key=lambda name: means[name]) if means else None
    sets: dict[str, Any] = {}
    against: dict[str, Any] = {}
    for name in settings.problems:
        own = names == name
        sets[name] = {m: _estimate(v[own], m in SHARES) for m, v in columns.items()} | {"problems": int(own.sum())}
        if nearest is not None and name not in controls:
            against[name] = {m: difference(v[own], v[names == nearest], m in SHARES) for m, v in columns.items()}
    return {"sets": sets, "against": against, "controls": list(controls), "control": nearest}


def _estimate(values: np.ndarray, share: bool) -> dict[str, float | None]:
    if share:
        low, high = wilson(int(values.sum()), len(values))
        return {"value": float(values.mean()), "low": low, "high": high}
    half = _half(len(values) - 1) * math.sqrt(values.var(ddof=1) / len(values)) if len(values) > 1 else None
    middle = float(values.mean())
    return {"value": middle, **_edges(middle, half)}


def difference(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, share: bool) -> dict[str, Any]:
    """Mean of a minus mean of b, for independent problems: Newcombe's interval of shares, Welch's of other means."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    middle = float(a.mean() - b.mean())
    if share:
        (low_a, high_a), (low_b, high_b) = (wilson(int(v.sum()), len(v)) for v in (a, b))
        down, up = (math.hypot(x - y, z - w) for x, y, z, w in (
            (a.mean(), low_a, high_b, b.mean()), (high_a, a.mean(), b.mean(), low_b),
        ))  # fmt: skip
        return {"value": middle, "low": middle - down, "high": middle + up}
    if min(len(a), len(b)) < 2:
        return {"value": middle, **_edges(middle, None)}
    parts = [v.var(ddof=1) / len(v) for v in (a, b)]
    spread = sum(p * p / (len(v) - 1) for p, v in zip(parts, (a, b), strict=True))
    if spread == 0:
        return {"value": middle, "low": middle, "high": middle}
    return {"value": middle, **_edges(middle, _half(sum(parts) ** 2 / spread) * math.sqrt(sum(parts)))}


def _half(freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def _edges(middle: float, half: float | None) -> dict[str, float | None]:
    return {"low": None if half is None else middle - half, "high": None if half is None else middle + half}

"""From samples to what they say: the grid's tables, and analyses of one checkpoint without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.study.errors import UserError

if TYPE_CHECKING:
    from tokencredit.study.config import Runtime


def run(
    spec: dict[str, Any],
    checkpoint: Path,
    problems: Sequence[Path],
    semifactuals: Path | None,
    out: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
) -> None:
    """One analysis of one checkpoint: tables and record.json under `out`, resumable parts under `state`.

    problems: tables named as their sets, one but for completions; semifactuals: None where the kind reads none.
    """
    kind = spec["analysis"]["kind"]
    if kind == "completion":
        from tokencredit.analysis import completion

        completion.analyse(spec, checkpoint, problems, out, state, runtime, events)
        return
    if semifactuals is None:
        raise UserError(f"an analysis of kind {kind} reads semifactuals: name their table (--semifactuals)")
    if kind == "panel":
        from tokencredit.analysis.panel import analyse
    elif kind == "filtered":
        from tokencredit.analysis.filtered import analyse
    else:
        from tokencredit.analysis.fidelity import analyse
    analyse(spec, checkpoint, problems[0], semifactuals, out, state, runtime, events)

"""From samples to what they say: the grid's tables, and analyses of one checkpoint without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokencredit.study.config import Runtime


def run(
    spec: dict[str, Any],
    checkpoint: Path,
    problems: Path,
    semifactuals: Path,
    out: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
) -> None:
    """One analysis of one checkpoint: tables and record.json under `out`, resumable parts under `state`."""
    kind = spec["analysis"]["kind"]
    if kind == "panel":
        from tokencredit.analysis.panel import analyse
    elif kind == "filtered":
        from tokencredit.analysis.filtered import analyse
    else:
        from tokencredit.analysis.fidelity import analyse
    analyse(spec, checkpoint, problems, semifactuals, out, state, runtime, events)

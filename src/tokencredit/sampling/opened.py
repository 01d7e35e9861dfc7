"""The engine of a checkpoint: in this process, in several (copies), or behind a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokencredit.grid import devices
from tokencredit.model.checkpoint import Checkpoint, open_checkpoint, read_weights
from tokencredit.sampling import Engine, make_engine
from tokencredit.study.base import parse
from tokencredit.study.engines import Server, Vllm
from tokencredit.study.errors import UserError


def open_engine(
    opened: Checkpoint,
    kind: str | Mapping[str, Any] | Vllm | Server,
    device: str,
    dtype: str,
    copies: int = 1,
) -> Engine:
    """kind: a name or settings of study/engines.py; copies: processes that each hold the model, on their own GPUs."""
    if isinstance(kind, Server) or (isinstance(kind, Mapping) and kind.get("kind") == "server"):
        from tokencredit.serving.client import ServerEngine

        settings = kind if isinstance(kind, Server) else parse(Server, dict(kind), "engine")
        return ServerEngine(settings, opened.identity, opened.folder, opened.digest)
    if copies == 1:
        return make_engine(opened.folder, weights=read_weights(opened), kind=kind, device=device, dtype=dtype)
    from tokencredit.sampling.parallel import ParallelEngine

    arguments = {"record": opened.record, "kind": kind, "device": device, "dtype": dtype}
    return ParallelEngine(_open, arguments, _share_out(copies, tensor_parallel(kind), device))


def tensor_parallel(kind: Any) -> int:
    """GPUs that one copy of the model needs."""
    given = kind.get("tensor_parallel", 1) if isinstance(kind, Mapping) else getattr(kind, "tensor_parallel", 1)
    return int(given)


def _open(record: Path, kind: Any, device: str, dtype: str) -> Engine:
    return open_engine(open_checkpoint(record), kind, device, dtype)


def _share_out(copies: int, each: int, device: str) -> list[list[str] | None]:
    """GPUs of each copy; None each where there is none to choose."""
    names = [] if device == "cpu" else devices.visible()
    if not names:
        return [None] * copies
    if len(names) < copies * each:
        raise UserError(
            f"runtime.copies: {copies} copies of a model on {each} GPU{'s' if each > 1 else ''} each, and this job has "
            f"{len(names)}: give the rule evaluate gpu={copies * each}, or take fewer copies"
        )
    return [names[i * each : (i + 1) * each] for i in range(copies)]

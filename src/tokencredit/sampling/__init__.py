"""Sampling completions: one engine interface, a fast engine for the common decoders, one for everything else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.sampling.types import Completion, Engine, Params, Request, Unsupported
from tokencredit.study.base import parse
from tokencredit.study.engines import Vllm

if TYPE_CHECKING:
    import torch

__all__ = ["Completion", "Engine", "Params", "Request", "Unsupported", "make_engine"]

log = logging.getLogger(__name__)


def make_engine(
    source: Any,
    *,
    weights: Mapping[str, torch.Tensor] | None = None,
    kind: str | Mapping[str, Any] | Vllm = "auto",
    device: str = "auto",
    dtype: torch.dtype | str | None = None,
) -> Engine:
    """An engine for a from_pretrained folder (path) or a live transformers or peft model.

    kind: "fast", "hf", "vllm" (or its settings), or "auto": fast where it supports the model (a live model's logits are
    compared with the engine's), else hf. weights: by transformers' names, in place of those stored in the folder.
    device: "auto" is where a live model is, else the GPU if there is one. dtype None: as the weights are stored.
    Raises Unsupported (a UserError) where kind is "fast" and the model is not supported.
    """
    import torch

    precision: torch.dtype | None = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    folder = Path(source) if isinstance(source, str | Path) else None
    if device == "auto":
        live = None if folder is not None else next(source.parameters()).device
        device = str(live or ("cuda" if torch.cuda.is_available() else "cpu"))
    where = torch.device(device)
    if kind == "vllm" or not isinstance(kind, str):
        from tokencredit.sampling.vllm import VllmEngine

        settings = kind if isinstance(kind, Vllm) else parse(Vllm, {} if isinstance(kind, str) else kind, "engine")
        if folder is not None:
            return VllmEngine.from_folder(folder, where, precision, weights, settings)
        return VllmEngine.from_model(source, where, precision, settings)
    if kind != "hf":
        from tokencredit.sampling.fast import FastEngine

        try:
            if folder is not None:
                return FastEngine.from_folder(folder, where, precision, weights)
            return FastEngine.from_model(source, where, precision)
        except Unsupported as error:
            if kind == "fast":
                raise
            log.warning("the fast engine cannot run this model (%s): the transformers engine does", error)
    from tokencredit.sampling.hf import TransformersEngine

    if folder is not None:
        return TransformersEngine.from_folder(folder, where, precision, weights)
    return TransformersEngine(source, precision)

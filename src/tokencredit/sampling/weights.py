"""The weights a model computes with: by transformers' names, LoRA merged, the model itself left as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokencredit.sampling.types import Unsupported


def plain(model: Any) -> Any:
    """The transformers model inside a peft model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@torch.no_grad()
def effective_weights(model: Any) -> dict[str, Tensor]:
    """Name -> weight; those with a LoRA adapter are new tensors W + scale B A, all others the model's own.

    Raises Unsupported for adapters that are not plain LoRA on linear layers (DoRA, replaced modules).
    """
    weights: dict[str, Tensor] = {}
    adapted: set[str] = set()
    inner = plain(model)
    for name, module in inner.named_modules():
        if not hasattr(module, "base_layer"):
            continue
        weights |= {f"{name}.{key}": tensor for key, tensor in _merged(name, module).items()}
        adapted.add(f"{name}.")
    for name, parameter in inner.named_parameters():
        if "modules_to_save" in name or "original_module" in name:
            raise Unsupported(f"{name}: the fast engine does not know replaced modules (modules_to_save)")
        if not any(name.startswith(prefix) for prefix in adapted):
            weights[name] = parameter.detach()
    return weights


def _merged(name: str, module: Any) -> dict[str, Tensor]:
    if not hasattr(module, "get_delta_weight") or not hasattr(module, "lora_A"):
        raise Unsupported(f"{name}: the fast engine knows LoRA adapters only, not {type(module).__name__}")
    if any(getattr(module, "lora_variant", {}).values()) or any(getattr(module, "lora_bias", {}).values()):
        raise Unsupported(f"{name}: the fast engine knows plain LoRA only (no DoRA or other variant, no LoRA bias)")
    layer = module.get_base_layer()
    weight = layer.weight.detach()
    if not module.merged and not module.disable_adapters:
        for adapter in module.active_adapters:
            if adapter in module.lora_A:
                weight = weight.float() + module.get_delta_weight(adapter).float()
    found = {"weight": weight}
    if getattr(layer, "bias", None) is not None:
        found["bias"] = layer.bias.detach()
    return found

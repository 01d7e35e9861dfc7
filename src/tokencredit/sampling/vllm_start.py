"""Starting vLLM in this process, and handing weights to it.

The model is started from a configuration with random weights, and every weight is then put in its place, so that the
first hand-over goes the same way as all others. Adapters stand beside weights that never change; those are read from a
file, since vLLM cannot replace the weights of a model it has wrapped for adapters.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokencredit.sampling.types import Unsupported
from tokencredit.study.engines import Vllm
from tokencredit.study.errors import UserError

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes as the largest rank of an adapter
CPU_CACHE_GB = 1.0
CPU_BLOCK = 32  # tokens of a cache block; the smallest its attention takes
BATCH_TOKENS = {"cpu": 4096}
BATCH_TOKENS_ELSEWHERE = 32768
EVERYWHERE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # weights are handed over within the process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
ON_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
MISSING = (
    "engine vllm: vLLM is not installed in this environment. `make env-vllm` makes .venv-vllm for a CPU "
    "(envs/vllm-cpu.lock.txt); for CUDA see envs/gpu.lock.txt. Or set models.*.engine: auto"
)

_started: list[Any] = []  # kept: one that the garbage collector ends would end the others too
_ended: list[Any] = []


def library(device: torch.device) -> Any:
    """The vllm module, told to stay in this process. Raises UserError where it is not there or for another device."""
    for name, value in {**EVERYWHERE, **(ON_CPU if device.type == "cpu" else {})}.items():
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings(action="ignore"):
            import vllm
            from vllm.platforms import current_platform
    except ImportError as error:
        if error.name not in (None, "vllm"):
            raise UserError(f"{MISSING} (vLLM is there, but {error.name} is not)") from error
        raise UserError(MISSING) from None
    if device.type == "cpu":
        torch._dynamo.config.disable = True  # the variable comes too late where torch has read it already
    if current_platform.is_cpu() != (device.type == "cpu"):
        raise UserError(
            f"engine vllm: this build of vLLM is for {current_platform.device_type or 'no device found here'}, "
            f"runtime.device is {device.type}"
        )
    return vllm


def start(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
    settings: Vllm,
    rank: int,
) -> tuple[Any, int]:
    """(vllm.LLM, tokens it holds of one request). Weights are still random, unless they come from a file."""
    vllm = library(device)
    allowed = int(config.get("max_position_embeddings") or settings.max_context or 0)
    context = min(settings.max_context or allowed, allowed)
    if not config.get("architectures") or context < 1:
        raise Unsupported("engine vllm: the model's config.json names no architectures or no max_position_embeddings")
    untied = {k: v for k, v in config.items() if k not in ("quantization_config", "_name_or_path")}
    (folder / "config.json").write_text(json.dumps({**untied, "tie_word_embeddings": False}, default=str))
    from_file = rank > 0 or settings.tensor_parallel > 1
    if from_file:
        save(weights, folder)
    on_cpu = device.type == "cpu"
    cache_gb = settings.cache_gb or (CPU_CACHE_GB if on_cpu else None)
    options: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "load_format": "auto" if from_file else "dummy",
        "dtype": str(dtype).removeprefix("torch."),
        "logprobs_mode": "processed_logprobs",
        "max_model_len": context,
        "max_num_seqs": settings.rows,
        # vLLM ends with an error where a request with a seed is run in chunks
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(context, settings.rows, BATCH_TOKENS.get(device.type, BATCH_TOKENS_ELSEWHERE)),
        "kv_cache_memory_bytes": int(cache_gb * 2**30) if cache_gb else None,
        "generation_config": "vllm",  # nothing from a file
        "tensor_parallel_size": settings.tensor_parallel,
        "disable_log_stats": True,
        "seed": 0,
    }
    if on_cpu:
        options |= {"enforce_eager": True, "block_size": CPU_BLOCK}
    else:
        options |= {"enable_sleep_mode": settings.sleep, "gpu_memory_utilization": settings.gpu_share}
    if rank:
        largest = next((r for r in RANKS if r >= rank), rank)
        options |= {"enable_lora": True, "max_lora_rank": largest, "max_loras": 1, "max_cpu_loras": 1}
    try:
        with warnings.catch_warnings(action="ignore"):
            _started.append(vllm.LLM(**options))
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise Unsupported(f"engine vllm cannot run {config['architectures'][0]} as set: {error}") from error
    return _started[-1], context


def end(llm: Any) -> None:
    """Shut down with the last engine of the process: what they share (process groups) ends with the first that does."""
    _ended.append(llm)
    if len(_ended) == len(_started):
        for each in _ended:
            each.llm_engine.engine_core.shutdown()
        _started.clear()
        _ended.clear()


def save(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Weights of an untied model into model.safetensors."""
    from safetensors.torch import save_file

    save_file({k: v.detach().cpu().contiguous() for k, v in untied(weights).items()}, str(folder / "model.safetensors"))


def untied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With the head by name, where it is the embedding."""
    found = dict(weights)
    if HEAD not in found and EMBEDDING in found:
        found[HEAD] = found[EMBEDDING].clone()
    return found


class Handover:
    """Whole weights into a running vLLM."""

    def __init__(self, llm: Any, folder: Path, settings: Vllm) -> None:
        self.llm, self.folder, self.by_file = llm, folder, settings.tensor_parallel > 1

    def weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace every weight. Raises UserError where one was not replaced, or cached prefixes would stay."""
        given: dict[str, Any] = {}
        if self.by_file:
            save(weights, self.folder)
            given["weights_path"] = str(self.folder)
        else:
            given["weights_iterator"] = iter(untied(weights).items())
        with _nothing_left_out():
            self.llm.collective_rpc("reload_weights", kwargs=given)
        forget(self.llm)


class Adapters:
    """LoRA adapters beside fixed weights; each is handed over under a new name and number, the one before removed."""

    def __init__(self, llm: Any, folder: Path) -> None:
        self.llm, self.folder, self.count = llm, folder, 0
        self.current: Any = None

    def take(self, model: Any) -> None:
        from vllm.lora.request import LoRARequest

        before, self.count = self.current, self.count + 1
        path = self.folder / f"adapter-{self.count}"
        model.save_pretrained(str(path))
        self.current = LoRARequest(path.name, self.count, str(path))
        # loaded here and not at the next request: an adapter that fails there would leave generate() waiting for ever
        if not self.llm.llm_engine.add_lora(self.current):
            raise UserError(f"engine vllm: adapter {self.count} was not loaded")
        if before is not None:
            self.llm.llm_engine.remove_lora(before.lora_int_id)
            shutil.rmtree(before.lora_path, ignore_errors=True)
        forget(self.llm)


def forget(llm: Any) -> None:
    """Empty the prefix cache: its entries were computed with the weights before."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("engine vllm: the prefix cache was not emptied; a request is still running")


@contextlib.contextmanager
def _nothing_left_out() -> Iterator[None]:
    """vLLM only warns of weights that were not replaced; here they are an error."""
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.inplace")
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
    left = [message for message in kept if "not loaded" in message]
    if left:
        raise UserError(f"engine vllm: {left[0]}")

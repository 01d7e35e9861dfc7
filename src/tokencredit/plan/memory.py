"""GPU memory of a training step, found by taking one on tensors without data, and that of the sampler.

PyTorch's fake tensors have a shape, a type and a storage of a known size, and no content. The model of the study is
built of them and the trainer's own score and backward passes run over one micro-batch at the limits of prompt and
response; every storage that comes and goes is counted. Against real steps on a CPU the result is within a few per cent
(tests/plan). Not counted: workspaces inside kernels, the CUDA context, fragmentation; `gpus.usable` leaves room.
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from tokencredit.model.policy import Policy, for_training, precisions
from tokencredit.plan.shapes import Shape
from tokencredit.study.config import Model, Training
from tokencredit.study.engines import Vllm
from tokencredit.study.errors import UserError


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one training step at its peak, and what was counted on the way."""

    weights: int
    gradients: int  # of the trained parameters; all there from the second micro-batch of a step on
    optimizer: int  # AdamW's two moments
    activations: int  # kept from the forward for the backward pass
    scores: int  # what tiles of logits, recomputed layers and gradients in flight add at the peak
    rows: int  # of the micro-batch
    width: int  # tokens of a row, prompt and response
    parameters: int  # of the base model
    trained: int
    matrices: int  # parameters that a token is multiplied with in the layers: neither embedding nor head

    @property
    def at_rest(self) -> int:
        """What stays on the GPU between steps."""
        return self.weights + self.optimizer

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.scores


class Ledger(TorchDispatchMode):
    """Counts the bytes of storages that operations make, until they are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: Any) -> None:
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, size)

    def _drop(self, size: int) -> None:
        self.live -= size


def train_step(shape: Shape, model: Model, training: Training) -> StepMemory:
    """Memory of one update at the limits of prompt and response, in the largest micro-batch they allow."""
    width = training.max_prompt_tokens + training.max_tokens
    rows = max(1, training.microbatch_tokens // width)
    stored, autocast = precisions(model.adapter, model.dtype)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a name of the past
        net = for_training(_architecture(shape, stored), model.adapter, 0, model.gradient_checkpointing)
    ledger, kept = Ledger(), 0
    with FakeTensorMode(allow_non_fake_inputs=True), ledger:
        _without_data(net)
        policy = Policy(net, training.temperature, training.score_tile, autocast, check=False)
        weights = ledger.live
        for parameter in policy.parameters():
            parameter.grad = torch.zeros_like(parameter)
        at_rest = ledger.peak = ledger.live

        def forward_done(*_: Any) -> None:
            nonlocal kept
            kept = ledger.live - at_rest

        policy.backbone.register_forward_hook(forward_done)
        prompt, response = [0] * training.max_prompt_tokens, [0] * training.max_tokens
        policy.score([prompt] * rows, [response] * rows, "update").logprob.sum().backward()
        trained = sum(p.numel() for p in policy.parameters())
        adapters = trained if model.adapter.kind == "lora" else 0
        matrices = sum(m.weight.numel() for m in policy.backbone.modules() if isinstance(m, nn.Linear))
    return StepMemory(
        weights=weights,
        gradients=at_rest - weights,
        optimizer=2 * (at_rest - weights),
        activations=kept,
        scores=ledger.peak - at_rest - kept,
        rows=rows,
        width=width,
        parameters=sum(p.numel() for p in net.parameters()) - adapters,
        trained=trained,
        matrices=matrices,
    )


def _architecture(shape: Shape, stored: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {k: v for k, v in shape.values.items() if k not in ("model_type", "architectures", "dtype", "torch_dtype")}
    kind = shape.values["model_type"]
    try:
        config = AutoConfig.for_model(kind, **values)
    except ValueError:
        raise UserError(
            f"{shape.known_from}: transformers knows no model_type '{kind}', so it cannot be planned"
        ) from None
    return AutoModelForCausalLM.from_config(config, dtype=stored, attn_implementation="sdpa")


def _without_data(net: nn.Module) -> None:
    """Replace what lies on the meta device by fake tensors on the CPU; tied parameters stay tied."""
    made: dict[int, Tensor] = {}
    for module in net.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is None:
                    continue
                if id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype)
                    made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
                table[name] = made[id(old)]  # type: ignore[assignment]


@dataclass(frozen=True)
class Sampler:
    """Bytes that sampling takes on a GPU of its own share, and what is left for keys and values there."""

    weights: int
    cache: int  # negative: the weights alone do not fit into the share
    one_response: int  # keys and values of the longest sequence
    stays: bool  # whether all of it stays while the trainer scores and updates

    @property
    def total(self) -> int:
        return self.weights + max(self.cache, 0)


def sampler(shape: Shape, model: Model, parameters: int, tokens: int, memory: int) -> Sampler:
    """The engine's part of a GPU of `memory` bytes; tokens: of the longest sequence.

    vLLM takes its share of the GPU at once and gives it back while it sleeps; our engines keep a copy of the weights
    and take keys and values of one sequence at least, more where there is room.
    """
    element = 2 if model.dtype == "bfloat16" else 4
    engine = model.engine if isinstance(model.engine, Vllm) else Vllm() if model.engine == "vllm" else None
    if engine is None:
        one = tokens * shape.cache_bytes(element)
        return Sampler(parameters * element, one, one, stays=True)
    parts = engine.tensor_parallel
    weights, one = parameters * element // parts, tokens * shape.cache_bytes(element) // parts
    cache = int(engine.gpu_share * memory) - weights
    if engine.cache_gb is not None:
        cache = min(cache, int(engine.cache_gb * 2**30))
    return Sampler(weights, cache, one, stays=not engine.sleep)

"""Which engine samples, and what vLLM is told where it is the one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from tokencredit.study.base import Settings
from tokencredit.study.endpoint import EndpointSettings

Positive = Annotated[int, Field(ge=1)]
Kind = Literal["auto", "fast", "hf", "vllm"]


class Vllm(Settings):
    """vLLM (envs/vllm-cpu.lock.txt, envs/gpu.lock.txt). `engine: vllm` takes every default."""

    kind: Literal["vllm"] = "vllm"
    handover: Literal["auto", "merged", "adapter"] = "auto"
    """How LoRA reaches the engine: merged into its weights, or as an adapter beside them. auto: merged on a CPU, where
    adapters take several times as long, and adapter on a GPU, where merging would round it to bfloat16."""
    max_context: Positive | None = None  # prompt and response, tokens; None: what the model allows
    rows: Positive = 256  # samples in flight
    cache_gb: Annotated[float, Field(gt=0)] | None = None  # key-value cache; None: 1 on a CPU, by gpu_share on a GPU
    gpu_share: Annotated[float, Field(gt=0, le=1)] = 0.4  # of the GPU's memory, the engine's weights included
    tensor_parallel: Positive = 1  # GPUs that share one copy of the model
    sleep: bool = True  # on a GPU: give the memory back while the trainer scores and updates
    probes: Literal["trainer", "engine"] = "trainer"
    """Who reads responses under perturbed prompts, for SCAPO's credit and the panel: the trainer's score pass, or
    vLLM's prompt log-probabilities (temperature 1 only), whose difference is then measured on a part of each batch."""
    alarm: Annotated[float, Field(gt=0)] | None = None
    """A hand-over fails where the mean |difference| of the engine's and the model's log-probabilities on its probe
    passes this. None: 0.001 in float32, 0.2 in bfloat16."""


class Server(EndpointSettings):
    """An OpenAI-compatible server (`tokencredit serve`, `vllm serve`, ...), for evaluation.

    model: the served name; {model}, {method}, {seed} and {step} are the checkpoint's.
    """

    kind: Literal["server"]
    model: str = "{model}.{method}.seed{seed}.step{step}"
    concurrency: Positive = 256
    timeout: Annotated[float, Field(gt=0)] = 3600.0  # seconds for one response, its wait in the server's queue included
    token_ids: bool = True  # false: send and receive text, for servers that do not know vLLM's return_token_ids


def _tag(value: Any) -> str:
    if isinstance(value, str):
        return "name"
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "server" if kind == "server" else "settings"


AnyEngine = Annotated[Annotated[Kind, Tag("name")] | Annotated[Vllm, Tag("settings")], Discriminator(_tag)]
AnyEvaluator = Annotated[
    Annotated[Kind, Tag("name")] | Annotated[Vllm, Tag("settings")] | Annotated[Server, Tag("server")],
    Discriminator(_tag),
]

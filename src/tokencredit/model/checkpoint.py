"""Evaluated checkpoints: a folder that transformers or peft can load, and a record beside the weights."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.model.base import base_folder, check_files
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import file_digest
from tokencredit.study.tables import read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from tokencredit.model.policy import Policy

RECORD = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """What an engine needs to sample from a checkpoint or from the base model."""

    folder: Path  # from_pretrained folder of config, tokenizer and generation config
    weights: Path  # folder of the weights: the same, or a LoRA adapter's
    kind: str  # full | lora
    base: Path  # the base model's record
    identity: dict[str, Any]  # model, method, seed, step
    digest: str  # of the record
    record: Path


def export(policy: Policy, base: Path, folder: Path, identity: dict[str, Any], spec_hash: str) -> None:
    """Write the policy's weights and record into `folder`, replacing what is there; the record comes last.

    A full checkpoint is a complete from_pretrained folder (the base's tokenizer and generation config are copied);
    a LoRA one is peft's adapter.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with _errno(folder):
        policy.model.save_pretrained(str(folder))
    kind = "lora" if (folder / "adapter_config.json").exists() else "full"
    if kind == "full":
        for source in sorted(base.iterdir()):
            wanted = source.suffix in {".json", ".jinja", ".model"} and ".index." not in source.name
            if wanted and not (folder / source.name).exists():
                shutil.copyfile(source, folder / source.name)
    readme = folder / "README.md"
    readme.unlink(missing_ok=True)  # peft's model card names library versions only
    files = {p.name: {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in sorted(folder.iterdir())}
    for name in files:  # a power cut must not leave a checkpoint for resuming behind an export that is not whole
        with open(folder / name, "rb") as handle:
            os.fsync(handle.fileno())
    write_json(folder / RECORD, {"kind": kind, **identity, "files": files, "spec_hash": spec_hash})


def publish(exported: Path, out: Path, last: str = RECORD) -> None:
    """Link (or copy) the files of a folder to their declared place; the record is renamed in last."""
    out.mkdir(parents=True, exist_ok=True)
    files = (p for p in exported.iterdir() if p.is_file())
    for source in sorted(files, key=lambda p: (p.name == last, p.name)):
        target, temporary = out / source.name, out / f".{source.name}.tmp"
        temporary.unlink(missing_ok=True)
        if target.exists() and target.samefile(source):  # renaming a link over another one of the file does nothing
            continue
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        os.replace(temporary, target)


def open_checkpoint(record: Path) -> Checkpoint:
    """Open a checkpoint record (checkpoint.json), or the base's own record as the untrained model."""
    content = read_json(record)
    untrained = content.get("stage") == "base"
    base = record if untrained else record.parent / content["base"]
    folder = base_folder(base)
    digest = file_digest(record)
    if untrained:
        identity = {"model": content["model"], "method": "base", "seed": 0, "step": 0}
        return Checkpoint(folder, folder, "full", base, identity, digest, record)
    check_files(record.parent, content["files"])
    identity = {k: content[k] for k in ("model", "method", "seed", "step")}
    if content["kind"] == "full":
        return Checkpoint(record.parent, record.parent, "full", base, identity, digest, record)
    return Checkpoint(folder, record.parent, "lora", base, identity, digest, record)


def read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Name -> tensor of the whole model, a LoRA adapter merged: W + (alpha / r) B A."""
    weights = read_safetensors(checkpoint.folder)
    if checkpoint.kind == "full":
        return weights
    adapter = read_safetensors(checkpoint.weights)
    config = read_json(checkpoint.weights / "adapter_config.json")
    scale = config["lora_alpha"] / config["r"]
    for name, down in adapter.items():
        if name.endswith("lora_A.weight"):
            target = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
            up = adapter[name.replace("lora_A", "lora_B")]
            weight = weights[target]
            weights[target] = (weight.float() + scale * (up.float() @ down.float())).to(weight.dtype)
    return weights


@contextlib.contextmanager
def _errno(folder: Path) -> Iterator[None]:
    """safetensors wraps the system's errors, a full disk for one, in one of its own; give them back as they were."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from error


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors files. Raises UserError where there is none."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no safetensors files; weights are read from there")
    return {name: tensor for path in files for name, tensor in load_file(path).items()}

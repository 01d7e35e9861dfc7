"""The base model of a study, as a record that points at a from_pretrained folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tokencredit.study.base import expand, parse
from tokencredit.study.config import Model, Prompt
from tokencredit.study.errors import UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.sources import FolderModel, HubModel, ScratchModel
from tokencredit.study.tables import read_json, write_json

DIGESTED = 1 << 30  # bytes: larger folders are checked by size alone on load, since hashing takes minutes


def build_base(spec: dict[str, Any], record: Path, state: Path) -> None:
    """Make or find the base model of `spec` and write its record (models/{model}/base.json)."""
    settings = parse(Model, {k: spec[k] for k in ("source", "prompt", "dtype", "engine")}, f"model {spec['model']}")
    source = settings.source
    seconds: dict[str, float] = {}
    extra: dict[str, Any] = {}
    if isinstance(source, ScratchModel):
        from tokencredit.model.pretrain import pretrain

        folder = record.parent / "base"
        extra = dict(pretrain(source, folder, state, spec["seed"], prompt=settings.prompt) or {})
        shown = folder.name
    elif isinstance(source, FolderModel):
        folder = Path(expand(source.path)).resolve()
        shown = os.path.relpath(folder, record.parent.resolve())
    else:
        folder = download(source)
        shown = str(folder)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in model_files(folder)}
    write_json(
        record,
        {
            "stage": "base",
            "spec": spec,
            "spec_hash": spec_hash(spec),
            "model": spec["model"],
            "folder": shown,
            "files": files,
            "seconds": seconds,
            "counts": {},
            "pretraining": extra,
            "provenance": collect(),
        },
    )


def download(source: HubModel) -> Path:
    """The pinned revision of a hub model, from the local cache or the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source.id, revision=source.revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"model {source.id}@{source.revision} is neither in the local cache nor reachable on the hub ({error}); "
            "download it where there is a connection, or use source: {kind: folder, path: ...}"
        ) from None


def model_files(folder: Path) -> list[Path]:
    """Files of a model folder that decide what it computes."""
    kept = {".safetensors", ".json", ".jinja", ".model"}
    found = sorted(p for p in folder.iterdir() if p.suffix in kept) if folder.is_dir() else []
    if not any(p.suffix == ".safetensors" for p in found):
        raise UserError(f"{folder}: no model there (a from_pretrained folder with safetensors weights is needed)")
    return found


def base_folder(record: Path) -> Path:
    """The folder a base record points at, checked against its digests."""
    content = read_json(record)
    folder = (record.parent / content["folder"]).resolve()
    check_files(folder, content["files"])
    return folder


def base_prompt(record: Path) -> Prompt:
    return parse(Prompt, read_json(record)["spec"]["prompt"], f"{record}: prompt")


def check_files(folder: Path, files: dict[str, Any]) -> None:
    """Every file is there, has its size, and (up to 1 GiB in all) its digest."""
    total = sum(entry["bytes"] for entry in files.values())
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: missing; delete the record that names it and run snakemake again")
        same = path.stat().st_size == entry["bytes"]
        if not same or (total <= DIGESTED and file_digest(path) != entry["sha256"]):
            raise UserError(f"{path}: damaged (not what its record says); delete its record and run snakemake again")


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Every end-of-sequence id of the generation config, else of the config."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = read_json(path).get("eos_token_id") if path.exists() else None
        if value is not None:
            return tuple(value) if isinstance(value, list) else (value,)
    raise UserError(f"{folder}: no eos_token_id in generation_config.json or config.json")

"""What a server can serve: every checkpoint of a study by name, or one model folder; one is loaded at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.model.base import eos_ids
from tokencredit.model.checkpoint import Checkpoint, open_checkpoint, read_weights
from tokencredit.model.prompts import load_tokenizer
from tokencredit.sampling import Engine, make_engine
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import file_digest
from tokencredit.study.tables import read_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """A loaded model."""

    name: str
    engine: Engine
    tokenizer: Any
    eos: tuple[int, ...]
    context: int  # tokens of prompt and response the model was made for; 0: not known


class Library:
    """Names -> models. `where` is results/STUDY (every checkpoint, also those that come later) or a model folder."""

    def __init__(self, where: Path, engine: str = "auto", device: str = "auto", dtype: str | None = None):
        self.where, self.engine, self.device, self.dtype = where, engine, device, dtype
        self._open: Served | None = None
        self._known = self.names()  # an unfit folder is an error now

    def find(self, name: str) -> Path | None:
        """Where a model is; looked for anew where it is not known yet."""
        if name not in self._known:
            self._known = self.names()
        return self._known.get(name)

    def names(self) -> dict[str, Path]:
        """Name -> checkpoint record or base record; of a model folder, its name -> the folder."""
        if (self.where / "config.json").is_file():
            return {self.where.resolve().name: self.where}
        records = sorted(
            [*self.where.glob("models/*/base.json"), *self.where.glob("train/*/*/seed*/step*/checkpoint.json")]
        )
        if not records:
            raise UserError(
                f"{self.where}: neither a study's results (models/, train/) nor a model folder (config.json)"
            )
        return {checkpoint_name(_identity(path)): path for path in records}

    def open(self, name: str) -> Served:
        """The model of that name, loaded; the one before is let go. UserError: there is none."""
        path = self.find(name)
        if path is None:
            raise UserError(f"{self.where}: no model {name!r} here")
        if self._open is None or self._open.name != name:
            self.close()
            log.info("loading %s", name)
            self._open = self._load(name, path)
        return self._open

    def close(self) -> None:
        """Let go of the loaded model."""
        if self._open is not None and hasattr(self._open.engine, "close"):
            self._open.engine.close()
        self._open = None

    def _load(self, name: str, path: Path) -> Served:
        folder, weights, kind, dtype = path, None, self.engine, self.dtype
        if path.is_file():
            opened: Checkpoint = open_checkpoint(path)
            folder, weights, dtype = (
                opened.folder,
                read_weights(opened),
                dtype or read_json(opened.base)["spec"]["dtype"],
            )
        engine = make_engine(folder, weights=weights, kind=kind, device=self.device, dtype=dtype)
        context = read_json(folder / "config.json").get("max_position_embeddings") or 0
        return Served(name, engine, load_tokenizer(folder), eos_ids(folder), int(context))


def digest(path: Path) -> str:
    """Of the record that names a model's weights; "" for a plain folder."""
    return file_digest(path) if path.is_file() else ""


def checkpoint_name(identity: dict[str, Any]) -> str:
    """MODEL.METHOD.seedN.stepN"""
    return "{model}.{method}.seed{seed}.step{step}".format(**identity)


def _identity(record: Path) -> dict[str, Any]:
    if record.name == "base.json":
        return {"model": record.parent.name, "method": "base", "seed": 0, "step": 0}
    model, method, seed, step = record.parts[-5:-1]
    return {"model": model, "method": method, "seed": seed.removeprefix("seed"), "step": step.removeprefix("step")}


def known(names: Sequence[str], shown: int = 5) -> str:
    """The first names, for messages."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(list(names)[:shown]) + more

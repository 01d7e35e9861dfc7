"""The shape of a model, from its config.json: a folder's, the hub cache's, a published one, or the scratch model's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from tokencredit.study.base import expand
from tokencredit.study.errors import UserError
from tokencredit.study.sources import FolderModel, HubModel, ModelSource, ScratchModel


@dataclass(frozen=True)
class Shape:
    """A decoder's shape. values: of config.json; known_from: where they were read."""

    values: Mapping[str, Any]
    known_from: str

    @property
    def layers(self) -> int:
        return int(self.values["num_hidden_layers"])

    @property
    def vocab(self) -> int:
        return int(self.values["vocab_size"])

    @property
    def hidden(self) -> int:
        return int(self.values["hidden_size"])

    @property
    def heads(self) -> int:
        return int(self.values["num_attention_heads"])

    @property
    def kv_heads(self) -> int:
        return int(self.values.get("num_key_value_heads") or self.heads)

    @property
    def head_dim(self) -> int:
        return int(self.values.get("head_dim") or self.hidden // self.heads)

    def cache_bytes(self, element: int) -> int:
        """Bytes of keys and values of one token, at `element` bytes a number."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element


def shape_of(source: ModelSource, where: str) -> Shape:
    """The shape of a study's model; nothing is fetched.

    Raises UserError where no config.json is at hand, or where it is not that of a decoder.
    """
    if isinstance(source, ScratchModel):
        from tokencredit.model.scratch import config_values

        return Shape(config_values(source, source.vocab), "study file")
    if isinstance(source, FolderModel):
        return _read(Path(expand(source.path)) / "config.json", where)
    cached = _cached(source)
    if cached is not None:
        return _read(cached, where)
    known = published()
    if source.id not in known:
        raise UserError(
            f"{where}: the shape of {source.id} is not known here. Put its config.json into the hub cache "
            f"(`hf download {source.id} config.json --revision {source.revision}`), "
            "or name a local folder as its source"
        )
    return Shape(known[source.id], "published shape")


def published() -> dict[str, dict[str, Any]]:
    """Hub id -> values of config.json, for the models that the studies name."""
    text = resources.files("tokencredit.plan").joinpath("shapes.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def _cached(source: HubModel) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.id, "config.json", revision=source.revision)
    return Path(found) if isinstance(found, str) else None


def _read(path: Path, where: str) -> Shape:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        shape = Shape(values, str(path))
        _ = shape.layers, shape.vocab, shape.head_dim, values["model_type"]
    except OSError as error:
        raise UserError(f"{where}: {path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where}: {path}: not the config.json of a decoder ({error})") from None
    return shape

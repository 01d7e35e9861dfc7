"""Reading configuration files, and laying one over another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tokencredit.study.errors import UserError


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The settings of one file. Raises UserError with the place of a syntax error."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}{place}: not YAML: {getattr(error, 'problem', error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold settings (key: value), not a {type(values).__name__}")
    return values


def overlay(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` laid over `base`: maps merge key by key, anything else is replaced.

    A map that names another `kind` replaces the whole one: the keys of a synthetic problem set mean nothing to a
    file.

    >>> overlay({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    >>> overlay({"a": {"kind": "synthetic", "size": 2}}, {"a": {"kind": "jsonl", "path": "p"}})
    {'a': {'kind': 'jsonl', 'path': 'p'}}
    """
    out = dict(base)
    for key, value in change.items():
        old = out.get(key)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            out[key] = overlay(old, value)
        else:
            out[key] = value
    return out

"""Typed, frozen configuration: unknown keys are errors that name the nearest right key."""

from __future__ import annotations

import difflib
import os
import re
import string
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tokencredit.study.errors import UserError

M = TypeVar("M", bound="Settings")
T = TypeVar("T")

# A YAML list read into a tuple; the items themselves stay strictly typed.
Strings = Annotated[tuple[str, ...], Field(strict=False)]
Ints = Annotated[tuple[int, ...], Field(strict=False)]

# One month (2025-02) or a list of them.
Months = Annotated[
    tuple[Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(strict=False),
]

NAME = r"^[a-z0-9][a-z0-9_-]*$"
Name = Annotated[str, Field(pattern=NAME)]


class Settings(BaseModel):
    """Base of every configuration section: frozen, strict types, no unknown keys, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def parse(model: type[M], values: Mapping[str, Any], where: str = "config") -> M:
    """Validate `values` as `model`; every problem found is named in one UserError."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_describe(model, e) for e in error.errors()]
        raise UserError(f"{where} is not valid:\n" + "\n".join(f"  - {line}" for line in lines)) from None


def _describe(model: type[BaseModel], error: Any) -> str:
    location = [str(p) for p in error["loc"]]
    key = ".".join(location)
    got = error.get("input")
    if error["type"] == "extra_forbidden":
        known = _keys_at(model, error["loc"][:-1])
        return f"{key}: unknown key{_nearest(location[-1], known)}"
    if error["type"] == "missing":
        return f"{key}: missing"
    if error["type"] in ("float_type", "int_type") and isinstance(got, str) and _looks_numeric(got):
        return (
            f"{key}: '{got}' is text, not a number. YAML reads a number with an exponent only with a decimal "
            f"point and a sign, e.g. 1.0e-5"
        )
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        expected = re.findall(r"'([^']+)'", str(error.get("ctx", {}).get("expected_tags", "")))
        kind = got.get("kind") if isinstance(got, Mapping) else got
        return f"{key}.kind: unknown kind '{kind}'{_nearest(str(kind), expected)} (one of {', '.join(expected)})"
    if error["type"] == "literal_error":
        expected = re.findall(r"'([^']+)'", str(error["ctx"]["expected"]))
        return f"{key}: '{got}' is not one of {', '.join(expected)}{_nearest(str(got), expected)}"
    message = error["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(got, Mapping | list | tuple | BaseModel) else f" (got {got!r})"
    return f"{key}: {message}{shown}" if key else f"{message}{shown}"


def _looks_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _keys_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Field names of the section at `location`, walking through maps, lists and tagged unions."""
    candidates: list[Any] = [model]
    for part in location:
        following: list[Any] = []
        for candidate in candidates:
            fields = getattr(candidate, "model_fields", None)
            if fields and part in fields:
                following += _models_in(fields[part].annotation)
            elif fields and "kind" in fields and part in getattr(fields["kind"].annotation, "__args__", ()):
                following.append(candidate)  # the tag of a union stands in the location
            else:
                following.append(candidate)  # a map's key or a list's index
        candidates = following
    tags = {str(p) for p in location}
    tagged = [
        c
        for c in candidates
        if "kind" in c.model_fields and tags & set(getattr(c.model_fields["kind"].annotation, "__args__", ()))
    ]
    return sorted({name for c in (tagged or candidates) for name in c.model_fields})


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models_in(argument)]


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known here: {', '.join(known)}" if known else ""


def unknown_name(kind: str, name: str, known: Mapping[str, Any], where: str) -> UserError:
    """The error for a name that a study uses and does not define."""
    return UserError(f"{where}: unknown {kind} '{name}'{_nearest(name, sorted(known))}")


def expand(path: str) -> str:
    """Put environment variables into a path. TOKENCREDIT_SHARED defaults to ../shared.

    Raises UserError where another variable is not set.
    """
    values = {"TOKENCREDIT_SHARED": "../shared", **os.environ}
    try:
        return os.path.expanduser(string.Template(path).substitute(values))
    except KeyError as error:
        raise UserError(f"path '{path}': environment variable {error.args[0]} is not set") from None
    except ValueError:
        raise UserError(f"path '{path}': a '$' that is not ${{NAME}}") from None

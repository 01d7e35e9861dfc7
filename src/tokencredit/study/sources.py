"""Where problems and models come from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tokencredit.study.base import Ints, Settings, Strings

Positive = Annotated[int, Field(ge=1)]
AnswerKind = Literal["auto", "integer", "expression", "choice"]


class Columns(Settings):
    """Names of the columns that hold the problem, the gold answer, and (optional) an id.

    wrong: columns with the wrong options of a multiple-choice problem, whose `answer` column then holds the text of
    the right one. (Options that are lettered already stand in a list column `choices`.)
    """

    problem: str = "problem"
    answer: str = "answer"
    id: str = "id"
    wrong: Strings = ()


class Layout(Columns):
    """One of the forms a set comes in: its columns, what surrounds a problem, and how many rows it then has."""

    strip_prefix: str = ""
    strip_suffix: str = ""
    rows: Ints = ()  # any of these; empty: not checked


class SyntheticProblems(Settings):
    kind: Literal["synthetic"]
    split: Literal["train", "easy", "hard", "noop"]
    size: Positive


class _Rows(Settings):
    columns: Columns = Columns()
    layouts: Annotated[tuple[Layout, ...], Field(strict=False)] = ()  # the first that fits, instead of `columns`
    answer_kind: AnswerKind = "auto"
    size: Positive | None = None  # problems drawn by the study's seed; None: all
    expect_rows: Positive | None = None  # rows the file must have, else an error
    unique_ids: bool = False  # repeated ids are an error
    strip_prefix: str = ""
    strip_suffix: str = ""
    language: Literal["any", "en", "zh"] = "any"
    ungradable: Literal["error", "drop", "keep"] = "error"  # golds that the grader cannot read
    defects: dict[str, str] = Field(default_factory=dict)  # problem_id -> what is wrong; the row stays, flagged
    tolerances: dict[str, float] = Field(default_factory=dict)  # problem_id -> absolute error its gold allows
    orders: Annotated[int, Field(ge=1, le=24)] = 1  # orders of the options, with columns.wrong


class FileProblems(_Rows):
    """A local file; `path` may hold ${ENVIRONMENT_VARIABLES}.

    sha256 is checked where given; of a known copy (`known_sha256`) it is only said whether this is that copy.
    """

    kind: Literal["jsonl", "parquet", "csv"]
    path: str
    sha256: str = ""
    known_sha256: str = ""


class HubProblems(_Rows):
    kind: Literal["hub"]
    id: str
    config: str = "default"
    split: str = "train"
    revision: str


class UrlProblems(_Rows):
    """One file behind an address that names a fixed version (a commit)."""

    kind: Literal["url"]
    url: str
    sha256: str = ""


class RegistryProblems(Settings):
    """A set of the registry by name; where it is found is the study's setting `registry`.

    path: a copy in another place; expect_rows: for a copy with another number of rows; revision: of the hub's set,
    where the registry knows none or another one is wanted.
    """

    kind: Literal["registry"]
    name: str
    path: str = ""
    sha256: str = ""
    revision: str = ""
    expect_rows: Positive | None = None
    size: Positive | None = None
    language: Literal["any", "en", "zh"] = "any"

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        from tokencredit.study.registry import entries, nearest

        if name not in entries():
            raise ValueError(f"no set of the registry is named '{name}'{nearest(name)}")
        return name


PartSource = Annotated[
    SyntheticProblems | FileProblems | HubProblems | UrlProblems | RegistryProblems, Field(discriminator="kind")
]
Made = Literal["pool", "noop", "noop_control", "thinkbench"]


class MadeProblems(Settings):
    """A set made here from other sets: pooled as they are, or with variants in the problems' place."""

    kind: Literal["made"]
    how: Made
    parts: dict[str, PartSource]
    size: Positive | None = None

    @model_validator(mode="after")
    def _has_parts(self) -> Self:
        if not self.parts:
            raise ValueError("parts: name at least one set")
        return self


class ScratchModel(Settings):
    """A small Qwen3-architecture model, pretrained here on the synthetic corpus."""

    kind: Literal["scratch"]
    hidden: Positive = 64
    layers: Positive = 3
    heads: Positive = 2
    kv_heads: Positive = 2
    head_dim: Positive = 32
    ff: Positive = 192
    vocab: Positive = 376
    steps: Positive = 1800
    batch: Positive = 16
    clean_share: Annotated[float, Field(ge=0, le=1)] = 0.6


class FolderModel(Settings):
    """A from_pretrained folder; `path` may hold ${ENVIRONMENT_VARIABLES}."""

    kind: Literal["folder"]
    path: str


class HubModel(Settings):
    kind: Literal["hub"]
    id: str
    revision: str


ProblemSource = Annotated[
    SyntheticProblems | FileProblems | HubProblems | UrlProblems | RegistryProblems | MadeProblems,
    Field(discriminator="kind"),
]
ModelSource = Annotated[ScratchModel | FolderModel | HubModel, Field(discriminator="kind")]

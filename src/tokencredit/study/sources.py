"""Where problems and models come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tokencredit.study.base import Settings

Positive = Annotated[int, Field(ge=1)]
AnswerKind = Literal["auto", "integer", "expression", "choice"]


class Columns(Settings):
    """Names of the columns that hold the problem, the gold answer, and (optional) an id."""

    problem: str = "problem"
    answer: str = "answer"
    id: str = "id"


class SyntheticProblems(Settings):
    kind: Literal["synthetic"]
    split: Literal["train", "easy", "hard", "noop"]
    size: Positive


class _Rows(Settings):
    columns: Columns = Columns()
    answer_kind: AnswerKind = "auto"
    size: Positive | None = None  # problems drawn by the study's seed; None: all
    expect_rows: Positive | None = None  # rows the file must have, else an error
    strip_prefix: str = ""
    strip_suffix: str = ""
    language: Literal["any", "en", "zh"] = "any"
    ungradable: Literal["error", "drop", "keep"] = "error"  # golds that the grader cannot read


class FileProblems(_Rows):
    """A local file; `path` may hold ${ENVIRONMENT_VARIABLES}."""

    kind: Literal["jsonl", "parquet"]
    path: str
    sha256: str = ""  # checked where given


class HubProblems(_Rows):
    kind: Literal["hub"]
    id: str
    config: str = "default"
    split: str = "train"
    revision: str


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


ProblemSource = Annotated[SyntheticProblems | FileProblems | HubProblems, Field(discriminator="kind")]
ModelSource = Annotated[ScratchModel | FolderModel | HubModel, Field(discriminator="kind")]

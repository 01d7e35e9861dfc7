"""Who writes the semifactual perturbations: our rules, a language model behind an endpoint, or a file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from tokencredit.study.base import Settings
from tokencredit.study.endpoint import EndpointSettings

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class LlmOrigin(EndpointSettings):
    """A model behind an OpenAI-compatible endpoint (vLLM, llama.cpp, hosted): POST {base_url}/chat/completions.

    What is asked and what is accepted (replies are filed under model, messages and sampling, not the address):
    `novelty` is the share of ordinary words that a paraphrase may change beyond our own phrase table.
    """

    kind: Literal["llm"]
    model: Annotated[str, Field(min_length=1)]
    temperature: NotNegative | None = 0.7  # null: not sent
    max_tokens: Positive | None = 4096  # null: not sent
    seeded: bool = True  # send a seed derived from (study seed, problem, attempt)
    json_mode: Literal["object", "schema", "none"] = "object"  # response_format, as far as the server knows it
    extra: dict[str, Any] = Field(default_factory=dict)  # laid over the request, e.g. {reasoning_effort: low}
    attempts: Positive = 3  # times a problem is asked, each time for the kinds that were refused
    novelty: Share = 0.2
    fallback: Literal["rules", "none"] = "rules"  # for a kind that is refused every time
    unanswered: Literal["error", "skip"] = "error"  # problems without a reply after all retries

    price_in: NotNegative = 0.0  # per million prompt tokens, in `currency`
    price_out: NotNegative = 0.0  # per million completion tokens
    currency: str = "USD"
    max_cost: Annotated[float, Field(gt=0)] | None = None  # stop before more is spent, in `currency`


class ImportColumns(Settings):
    """Names of the columns of an imported file; a row names its problem by id or by its text."""

    id: str = "problem_id"
    problem: str = "problem"
    kind: str = "kind"
    text: str = "text"


class ImportOrigin(Settings):
    """Perturbations from a JSONL, Parquet or CSV file; `path` may hold ${ENVIRONMENT_VARIABLES}."""

    kind: Literal["import"]
    path: str
    sha256: str = ""  # checked where given
    columns: ImportColumns = ImportColumns()
    novelty: Share = 0.2
    fallback: Literal["rules", "none"] = "none"  # for a kind that the file lacks, or whose texts are refused


def _tag(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", value)


Origin = Annotated[
    Annotated[Literal["rules"], Tag("rules")]
    | Annotated[LlmOrigin, Tag("llm")]
    | Annotated[ImportOrigin, Tag("import")],
    Discriminator(_tag),
]

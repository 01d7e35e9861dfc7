"""Where an OpenAI-compatible server is (vLLM, llama.cpp, `tokencredit serve`, a hosted one), and how it is asked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tokencredit.study.base import Settings


class EndpointSettings(Settings):
    base_url: str  # may hold ${ENVIRONMENT_VARIABLES}
    key_env: str = ""  # name of the environment variable that holds the API key; "": no key is sent
    concurrency: Annotated[int, Field(ge=1)] = 8  # requests under way
    retries: Annotated[int, Field(ge=0)] = 6  # after a lost connection, time-out, 408, 409, 425, 429 or 5xx
    backoff: Annotated[float, Field(ge=0)] = 1.0  # seconds before the first retry; doubled each time, at most 60
    timeout: Annotated[float, Field(gt=0)] = 300.0  # seconds for one whole reply

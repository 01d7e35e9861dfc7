"""The engine that asks an OpenAI-compatible server: prompts go as token ids, one request a sample.

The server has weights of its own; this engine cannot hand any over, so that it evaluates and does not train. A server
of ours says which checkpoint's record it serves, and another one than asked for is an error; of any other server the
record says that nobody checked (`verified: false`). With `token_ids: false` only what every such server knows is sent:
text, whose tokens are then counted by the model's own tokenizer, an end token added where the response stopped.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.endpoint import Refused, connect
from tokencredit.model.prompts import load_tokenizer
from tokencredit.sampling.types import Completion, Params, Request, check_requests
from tokencredit.study.engines import Server
from tokencredit.study.errors import UserError
from tokencredit.study.tables import read_json

WHERE = "evaluation.engine"


class ServerEngine:
    """A checkpoint behind a server. verified: whether the server said that it serves this very checkpoint."""

    def __init__(self, settings: Server, identity: Mapping[str, Any], folder: Path, digest: str) -> None:
        """identity: model, method, seed, step, for the served name; folder: the checkpoint's, for config and tokenizer.

        Raises UserError where the server does not know the name, or serves another checkpoint under it.
        """
        self.settings = settings
        try:
            self.name = settings.model.format(**identity)
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(f"{WHERE}.model: {settings.model!r}: only model, method, seed, step ({error})") from None
        self.vocab = int(read_json(folder / "config.json")["vocab_size"])
        self.tokenizer = None if settings.token_ids else load_tokenizer(folder)
        served = asyncio.run(self._served())
        if self.name not in served:
            few = ", ".join(list(served)[:5]) or "nothing"
            raise UserError(f"{WHERE}: the server does not serve '{self.name}' (it has {few}); see {WHERE}.model")
        told = served[self.name].get("tokencredit", {}).get("digest", "")
        if told and told != digest:
            raise UserError(
                f"{WHERE}: the server's '{self.name}' is another checkpoint than this one: serve these results"
            )
        self.verified = bool(told)
        self.processed = (
            "tokencredit" in served[self.name]
        )  # log-probabilities at the temperature, as this engine's are

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        """One completion per request, in the requests' order."""
        if not requests:
            return []
        check_requests(requests, self.vocab)
        if params.suppress:
            raise UserError(f"{WHERE}: a server cannot be told to leave tokens out exactly")
        return asyncio.run(self._all(requests, params))

    def update(self, model: Any) -> None:
        raise UserError("engine server: weights cannot be handed to a server; train with another engine")

    def sleep(self) -> None:
        """Nothing to give back."""

    async def _served(self) -> dict[str, Any]:
        endpoint = connect(self.settings, WHERE, self.name)
        async with endpoint.http:
            found = await endpoint.get("models", lambda answer: {m["id"]: m for m in answer["data"]})
        if isinstance(found, Refused):
            raise UserError(f"{endpoint.place}: {found.reason}")
        return found

    async def _all(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        endpoint = connect(self.settings, WHERE, self.name)
        free = asyncio.Semaphore(self.settings.concurrency)

        async def one(request: Request) -> Completion:
            async with free:
                found = await endpoint.post("completions", self._body(request, params), lambda a: self._read(a, params))
            if isinstance(found, Refused):
                raise UserError(f"{endpoint.place}: {found.reason}. Finished shards are kept; run again to go on")
            return found

        try:
            async with endpoint.http, asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(request)) for request in requests]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    def _body(self, request: Request, params: Params) -> dict[str, Any]:
        body = {
            "model": self.name,
            "prompt": list(request.prompt),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": request.seed % 2**63,
        }
        if self.tokenizer is not None:
            return body | {"prompt": self.tokenizer.decode(list(request.prompt)), "seed": request.seed % 2**31}
        return body | {
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": list(params.eos),
            "ignore_eos": True,
        }

    def _read(self, answer: Any, params: Params) -> Completion:
        choice = answer["choices"][0]
        finish = "length" if choice["finish_reason"] == "length" else "stop"
        if self.tokenizer is not None:
            tokens = tuple(self.tokenizer.encode(choice["text"], add_special_tokens=False))
            tokens += params.eos[:1] if finish == "stop" else ()
            return Completion(tokens, finish, (math.nan,) * len(tokens))
        ids = choice.get("token_ids")
        if ids is None:
            raise UserError(
                f"{WHERE}: the server returns no token ids: set {WHERE}.token_ids: false ({_short(choice)})"
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        exact = self.processed or (params.temperature in (0, 1) and params.top_p == 1)
        known = exact and len(logprobs) == len(ids)
        numbers = tuple(math.nan if p is None else float(p) for p in logprobs) if known else (math.nan,) * len(ids)
        return Completion(tuple(ids), finish, numbers)


def _short(choice: Mapping[str, Any]) -> str:
    return json.dumps(choice)[:120]

"""An OpenAI-compatible server around any of our engines: `tokencredit serve results/STUDY` (or a model folder).

    GET  /v1/models             every name; `tokencredit.digest` is that of the checkpoint's record
    POST /v1/completions        prompt: text, token ids, or a list of either
    POST /v1/chat/completions   messages, through the model's chat template

Known of a request: model, prompt or messages, max_tokens (max_completion_tokens), temperature, top_p, n, seed,
logprobs, and vLLM's return_token_ids, stop_token_ids and ignore_eos. Streaming and stop strings are refused, other
fields are passed over. Sample i of n is drawn with seed + i. Requests that wait together run in one batch; a sample
does not depend on its neighbours (sampling/types.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse
from starlette.routing import Route

from tokencredit.sampling import Completion, Params, Request
from tokencredit.serving.library import Library, Served, digest, known
from tokencredit.study.errors import UserError

GATHER = 0.005  # seconds that a batch waits for others
Json = dict[str, Any]


class Bad(Exception):
    """A request that cannot be answered as it stands."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


@dataclass
class Job:
    """Samples asked of one model. ask: the loaded model -> (requests, params); it may raise Bad."""

    model: str
    ask: Callable[[Served], tuple[list[Request], Params]]
    done: Future[tuple[Served, list[Request], list[Completion]]] = field(default_factory=Future)


class Batcher:
    """One thread that owns the models: jobs of one model and equal parameters that wait together are one batch."""

    def __init__(self, library: Library):
        self.library = library
        self.waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.waiting.put(None)
        self.thread.join()
        self.library.close()

    def _work(self) -> None:
        while (job := self.waiting.get()) is not None:
            time.sleep(GATHER)
            jobs = [job]
            with contextlib.suppress(queue.Empty):
                while (more := self.waiting.get_nowait()) is not None:
                    jobs.append(more)
            for name in dict.fromkeys(j.model for j in jobs):
                self._serve(name, [j for j in jobs if j.model == name])

    def _serve(self, name: str, jobs: Sequence[Job]) -> None:
        try:
            served = self.library.open(name)
        except Exception as error:
            for job in jobs:
                job.done.set_exception(error)
            return
        batches: dict[Params, list[tuple[Job, list[Request]]]] = {}
        for job in jobs:
            try:
                requests, params = job.ask(served)
                batches.setdefault(params, []).append((job, requests))
            except Exception as error:
                job.done.set_exception(error)
        for params, batch in batches.items():
            try:
                drawn = iter(served.engine.generate([r for _, requests in batch for r in requests], params))
                for job, requests in batch:
                    job.done.set_result((served, requests, [next(drawn) for _ in requests]))
            except Exception as error:
                for job, _ in batch:
                    if not job.done.done():
                        job.done.set_exception(error)


def application(library: Library) -> Starlette:
    """The server's routes; models are loaded when first asked for."""
    batcher = Batcher(library)

    async def models(_: Asked) -> JSONResponse:
        names = library.names()
        own = [
            {"id": n, "object": "model", "owned_by": "tokencredit", "tokencredit": {"digest": digest(path)}}
            for n, path in names.items()
        ]
        return JSONResponse({"object": "list", "data": own})

    def answering(chat: bool) -> Callable[[Asked], Any]:
        async def answer(asked: Asked) -> JSONResponse:
            try:
                body = await _body(asked)
                name = str(body.get("model") or next(iter(library.names())))
                if library.find(name) is None:
                    raise Bad(f"no model {name!r} here; there are {known(list(library.names()))}", 404)
                job = Job(name, lambda served: read(body, served, chat))
                batcher.waiting.put(job)
                return JSONResponse(write(body, chat, *await asyncio.wrap_future(job.done)))
            except Bad as error:
                return _error(str(error), error.status)
            except UserError as error:
                return _error(str(error), 400)

        return answer

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> Any:
        yield
        await asyncio.to_thread(batcher.close)

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/completions", answering(False), methods=["POST"]),
            Route("/v1/chat/completions", answering(True), methods=["POST"]),
        ],
        lifespan=life,
    )


async def _body(asked: Asked) -> Json:
    try:
        body = json.loads(await asked.body())
    except ValueError:
        raise Bad("the body is not JSON") from None
    if not isinstance(body, dict):
        raise Bad("the body is not a JSON object")
    if body.get("stream"):
        raise Bad("stream is not known here")
    if body.get("stop"):
        raise Bad("stop strings are not known here; use stop_token_ids")
    return body


def _error(message: str, status: int) -> JSONResponse:
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def read(body: Json, served: Served, chat: bool) -> tuple[list[Request], Params]:
    """What a request asks of the engine. Raises Bad."""
    prompts = [_chat(body, served)] if chat else _prompts(body.get("prompt"), served.tokenizer)
    n, seed = _whole(body, "n", 1, 1), _whole(body, "seed", None, 0)
    seed = secrets.randbits(62) if seed is None else seed
    stops = body.get("stop_token_ids") or []
    if not _are_ids(stops):
        raise Bad("stop_token_ids: a list of token ids")
    longest = max(map(len, prompts))
    room = served.context - longest if served.context else None
    limit = _whole(body, "max_completion_tokens", None, 1) or _whole(body, "max_tokens", room if chat else 16, 1)
    if limit is None or (room is not None and limit > room):
        raise Bad(f"a prompt of {longest} tokens and max_tokens {limit} pass the model's context of {served.context}")
    eos = tuple(dict.fromkeys([*stops, *(() if body.get("ignore_eos") else served.eos)]))
    params = Params(limit, _number(body, "temperature", 1.0), _number(body, "top_p", 1.0), eos)
    return [Request(p, seed + i) for p in prompts for i in range(n or 1)], params


def write(body: Json, chat: bool, served: Served, requests: Sequence[Request], drawn: Sequence[Completion]) -> Json:
    """The answer to a request."""
    choices = []
    for index, (request, c) in enumerate(zip(requests, drawn, strict=True)):
        text = served.tokenizer.decode(list(c.tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        choice: Json = {"index": index, "finish_reason": c.finish, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(c.tokens), "prompt_token_ids": list(request.prompt)}
        if not chat and body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": [None if p != p else p for p in c.logprobs]}
        choices.append(choice)
    usage = {
        "prompt_tokens": sum(map(len, dict.fromkeys(r.prompt for r in requests))),
        "completion_tokens": sum(len(c.tokens) for c in drawn),
    }
    return {
        "id": f"cmpl-{secrets.token_hex(8)}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "choices": choices,
        "usage": usage | {"total_tokens": sum(usage.values())},
    }


def _prompts(value: Any, tokenizer: Any) -> list[tuple[int, ...]]:
    several = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    out = []
    for prompt in several:
        if isinstance(prompt, str):
            out.append(tuple(tokenizer.encode(prompt)))
        elif isinstance(prompt, list) and prompt and _are_ids(prompt):
            out.append(tuple(prompt))
        else:
            raise Bad("prompt: text, a list of token ids, or a list of either")
    return out


def _chat(body: Json, served: Served) -> tuple[int, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Bad("messages: a list of {role, content}")
    if not served.tokenizer.chat_template:
        raise Bad(f"{served.name} has no chat template; use /v1/completions")
    try:
        text = served.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates raise errors of their own
        raise Bad(f"messages do not fit the model's chat template ({error})") from None
    return tuple(served.tokenizer.encode(text, add_special_tokens=False))


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)


def _whole(body: Json, key: str, default: int | None, least: int) -> int | None:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Bad(f"{key}: a whole number of at least {least}")
    return value


def _number(body: Json, key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Bad(f"{key}: a number")
    return float(value)


@contextlib.contextmanager
def listening(library: Library, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread of its own; yields the base URL (port 0: a free one). For tests and notebooks."""
    server = uvicorn.Server(uvicorn.Config(application(library), host, port, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise UserError(f"the server could not listen on {host}:{port}")
            time.sleep(0.01)
        address = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{address[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


def serve(library: Library, host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    uvicorn.run(application(library), host=host, port=port, log_level="info", lifespan="on")

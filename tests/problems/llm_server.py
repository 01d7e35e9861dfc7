"""A server that speaks the chat-completions protocol, with a script that says how each request is answered."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokencredit.problems.semifactuals import RULES
from tokencredit.problems.validator import validate

Json = dict[str, Any]
LEFT_THROUGH = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")


@dataclass
class Answer:
    """What is sent back: a completion, another status, silence, or half a body."""

    content: str | None = ""
    status: int = 200
    finish: str = "stop"
    refusal: str | None = None
    error: str = ""
    headers: Json = field(default_factory=dict)
    delay: float = 0.0  # seconds
    hang_up: bool = False  # close the connection in the middle of the body
    raw: bytes | None = None


@dataclass
class Asked:
    """A request as the script sees it."""

    problem: str
    kinds: list[str]
    body: Json
    headers: Json
    nth: int  # how often this problem has been asked about, 1 for the first time

    @property
    def user(self) -> str:
        return self.body["messages"][-1]["content"]


Script = Callable[[Asked], Answer]


def good(asked: Asked) -> Answer:
    """Sound texts, as a capable model would write them; a function of the request."""
    return Answer(json.dumps(good_texts(asked)))


def good_texts(asked: Asked) -> dict[str, str]:
    rng = random.Random(f"{asked.body.get('seed')} {asked.problem}")
    return {kind: _sound(rng, kind, asked.problem) for kind in asked.kinds}


def _sound(rng: random.Random, kind: str, problem: str) -> str:
    drafts = (RULES[kind](rng, problem) for _ in range(200))
    return next(d for d in drafts if d and not validate(kind, problem, d))


class Server(ThreadingHTTPServer):
    """`with Server(script) as server:` listens on server.url; server.asked holds every request in turn."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Script = good):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.asked = script, list[Asked]()
        self.most_at_once = self.now = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def times(self) -> Counter[str]:
        return Counter(asked.problem for asked in self.asked)

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        pass  # clients that hang up are part of the play


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            return self._send(Answer(status=404, error="no such path"))
        answer = self._note(body)
        with self.server.lock:
            self.server.now += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.now)
        time.sleep(answer.delay)
        with self.server.lock:
            self.server.now -= 1
        return self._send(answer)

    def _note(self, body: Json) -> Answer:
        system, user = (m["content"] for m in body["messages"])
        problem = user.removeprefix("The problem:\n").partition("\n\nThese rewritings were refused")[0]
        kinds = [k for k in LEFT_THROUGH if re.search(rf"^- {k}:", system, re.MULTILINE)]
        with self.server.lock:
            asked = Asked(problem, kinds, body, dict(self.headers), self.server.times()[problem] + 1)
            self.server.asked.append(asked)
        return self.server.script(asked)

    def _send(self, answer: Answer) -> None:
        data = answer.raw if answer.raw is not None else json.dumps(self._body(answer)).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **answer.headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if answer.hang_up else data)
        if answer.hang_up:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _body(self, answer: Answer) -> Json:
        if answer.status != 200:
            return {"error": {"message": answer.error or "no"}}
        message = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
        choice = {"index": 0, "finish_reason": answer.finish, "message": message}
        return {"choices": [choice], "usage": {"prompt_tokens": 1000, "completion_tokens": 200}}

    def log_message(self, *_: object) -> None:
        pass

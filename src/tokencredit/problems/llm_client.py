"""Asking a model for perturbations: one request, its price, and the log of what was answered.

    POST {base_url}/chat/completions {model, messages, temperature, seed, ...} -> choices[0].message.content, usage

Every reply is appended to replies.jsonl and flushed to disk before it is used; a request is filed under the hash of
its body, and one that has been answered is never sent again. A line torn by a kill is dropped. Retries and what they
answer to are endpoint.py's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokencredit.endpoint import Endpoint, Refused, connect
from tokencredit.study.errors import UserError
from tokencredit.study.origins import LlmOrigin

LOST_IN_A_ROW = 8  # requests that fail one after the other before the endpoint is given up


@dataclass(frozen=True, slots=True)
class Reply:
    """A completion, or why there is none: finish is "rejected" (HTTP 4xx) or "unanswered" (all retries failed)."""

    content: str
    finish: str = "stop"
    refusal: str = ""
    tokens_in: int = 0
    tokens_out: int = 0


class ReplyLog:
    """replies.jsonl of a state folder: one line per reply, the first of each key counts."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "replies.jsonl"
        self.replies: dict[str, Reply] = {}
        self.tokens_in = self.tokens_out = 0  # of all replies ever paid for in this folder
        data = self.path.read_bytes() if self.path.exists() else b""
        for line in data.splitlines():
            try:
                entry = json.loads(line)
                self._count(entry["key"], Reply(**entry["reply"]))
            except (ValueError, KeyError, TypeError):
                continue  # torn by a kill: that one is asked again
        self._file = open(self.path, "ab")  # noqa: SIM115 (closed by close())
        if data and not data.endswith(b"\n"):
            self._file.write(b"\n")

    def add(self, key: str, reply: Reply) -> None:
        self._count(key, reply)
        self._file.write(json.dumps({"key": key, "reply": asdict(reply)}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _count(self, key: str, reply: Reply) -> None:
        self.replies.setdefault(key, reply)
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out

    def close(self) -> None:
        self._file.close()


def request_key(body: Mapping[str, Any]) -> str:
    """32 hex digits naming what is asked: model, messages, sampling; not where."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class Client:
    """Asks; keeps what was used (by key), and how the connection fares."""

    settings: LlmOrigin
    log: ReplyLog
    endpoint: Endpoint
    used: dict[str, Reply] = field(default_factory=dict)
    asked: int = 0  # requests answered in this run (not from the log)
    _lost: int = 0

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """The reply to one request, from the log or from the server. Raises UserError where going on is in vain."""
        key = request_key(body)
        reply = self.log.replies.get(key)
        if reply is None:
            self._check_budget()
            answer = await self.endpoint.post("chat/completions", body, read_reply)
            reply = Reply("", answer.finish, answer.reason) if isinstance(answer, Refused) else answer
            lost = reply.finish in ("rejected", "unanswered")
            self._lost = self._lost + 1 if lost else 0
            if self._lost >= LOST_IN_A_ROW:
                raise UserError(
                    f"{self.endpoint.place}: {self._lost} requests in a row failed, the last with: {reply.refusal}. "
                    f"What was answered before is kept; run again once the endpoint works"
                )
            if not lost:
                self.asked += 1
                self.log.add(key, reply)
        self.used[key] = reply
        return reply

    def _check_budget(self) -> None:
        limit = self.settings.max_cost
        if limit is not None and cost(self.settings, self.log.tokens_in, self.log.tokens_out) >= limit:
            raise UserError(
                f"{self.endpoint.place}: max_cost of {limit:g} {self.settings.currency} is spent; what was answered is "
                f"kept. Raise max_cost and run again to go on"
            )


def read_reply(answer: Any) -> Reply:
    """The completion in an answered body."""
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    message = choice["message"]
    content, refusal = message.get("content") or "", message.get("refusal") or ""
    counts = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    if not isinstance(content, str):  # some servers answer in parts
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return Reply(content, str(choice.get("finish_reason") or "stop"), str(refusal), *counts)


def cost(settings: LlmOrigin, tokens_in: int, tokens_out: int) -> float:
    """Price in the settings' currency."""
    return (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6


def digest(used: Mapping[str, Reply]) -> str:
    """SHA-256 over the replies used, whatever order they came in."""
    lines = sorted(f"{key} {json.dumps(asdict(reply), sort_keys=True)}\n" for key, reply in used.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def connected(settings: LlmOrigin, log: ReplyLog) -> Client:
    """A client for the endpoint; UserError where the key's variable is not set or the address is none."""
    return Client(settings, log, connect(settings, "semifactuals.origin", settings.model))

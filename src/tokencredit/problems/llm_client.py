"""Asking an OpenAI-compatible endpoint: one request, its retries, its price, and the log of what was answered.

    POST {base_url}/chat/completions {model, messages, temperature, seed, ...} -> choices[0].message.content, usage

Every reply is appended to replies.jsonl and flushed to disk before it is used; a request is filed under the hash of
its body, and one that has been answered is never sent again. A line torn by a kill is dropped.

What failed in passing (lost connection, time-out, HTTP 408, 409, 425, 429, 5xx, a body that is no completion) is tried
again after backoff * 2^n seconds, or after what `Retry-After` says. What the server will not do for this request
(other 4xx: too long, filtered) stands as a refusal. A wrong key or address stops the stage at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tokencredit.study.base import expand
from tokencredit.study.errors import UserError
from tokencredit.study.origins import LlmOrigin

AGAIN = frozenset({408, 409, 425, 429})
LONGEST_WAIT = 60.0  # seconds between two tries, whatever the server asks for
LOST_IN_A_ROW = 8  # requests that fail one after the other before the endpoint is given up


@dataclass(frozen=True, slots=True)
class Reply:
    """A completion, or why there is none: finish is "rejected" (HTTP 4xx) or "unanswered" (all retries failed)."""

    content: str
    finish: str = "stop"
    refusal: str = ""
    tokens_in: int = 0
    tokens_out: int = 0


class Failed(Exception):
    """A try that may succeed when repeated; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


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
    http: httpx2.AsyncClient
    secret: str = ""
    used: dict[str, Reply] = field(default_factory=dict)
    asked: int = 0  # requests answered in this run (not from the log)
    tries_failed: int = 0
    _lost: int = 0

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """The reply to one request, from the log or from the server. Raises UserError where going on is in vain."""
        key = request_key(body)
        reply = self.log.replies.get(key)
        if reply is None:
            self._check_budget()
            reply = await self._send(body)
            lost = reply.finish in ("rejected", "unanswered")
            self._lost = self._lost + 1 if lost else 0
            if self._lost >= LOST_IN_A_ROW:
                raise UserError(
                    f"{self._where}: {self._lost} requests in a row failed, the last with: {reply.refusal}. What was "
                    f"answered before is kept; run again once the endpoint works"
                )
            if not lost:
                self.asked += 1
                self.log.add(key, reply)
        self.used[key] = reply
        return reply

    async def _send(self, body: Mapping[str, Any]) -> Reply:
        reason, wait = "", 0.0
        for n in range(self.settings.retries + 1):
            if n:
                self.tries_failed += 1
                pause = self.settings.backoff * 2 ** (n - 1) * random.uniform(0.75, 1.25)  # touches no result
                await asyncio.sleep(min(max(pause, wait), LONGEST_WAIT))
            try:
                async with asyncio.timeout(self.settings.timeout):
                    response = await self.http.post("chat/completions", json=body)
                return self._read(response)
            except TimeoutError:
                reason, wait = f"no reply within {self.settings.timeout:g} s", 0.0
            except httpx2.RequestError as error:
                reason, wait = f"{type(error).__name__}: {self._clean(str(error))}".rstrip(": "), 0.0
            except Failed as failed:
                reason, wait = str(failed), failed.wait
        return Reply("", "unanswered", reason)

    def _read(self, response: httpx2.Response) -> Reply:
        status, said = response.status_code, self._clean(_message(response))
        if status in (401, 403):
            named = f"environment variable {self.settings.key_env}" if self.settings.key_env else "no key (key_env)"
            raise UserError(f"{self._where}: HTTP {status}: {said}. The key sent: {named}")
        if status == 404 or 300 <= status < 400:
            raise UserError(f"{self._where}: HTTP {status}: {said}. Check base_url and model '{self.settings.model}'")
        if status in AGAIN or status >= 500:
            raise Failed(f"HTTP {status}: {said}", _retry_after(response))
        if status >= 400:
            return Reply("", "rejected", f"HTTP {status}: {said}")
        try:
            answer = response.json()
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            message = choice["message"]
            content, refusal = message.get("content") or "", message.get("refusal") or ""
            counts = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Failed(f"HTTP {status} without a completion: {said}") from None
        if not isinstance(content, str):  # some servers answer in parts
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        return Reply(content, str(choice.get("finish_reason") or "stop"), str(refusal), *counts)

    def _check_budget(self) -> None:
        limit = self.settings.max_cost
        if limit is not None and cost(self.settings, self.log.tokens_in, self.log.tokens_out) >= limit:
            raise UserError(
                f"{self._where}: max_cost of {limit:g} {self.settings.currency} is spent; what was answered is kept. "
                f"Raise max_cost and run again to go on"
            )

    @property
    def _where(self) -> str:
        return f"semifactuals.origin, {self.http.base_url}"

    def _clean(self, text: str) -> str:
        """A message from outside, short and without the key (some servers repeat it)."""
        text = " ".join(text.split())
        return (text.replace(self.secret, "***") if self.secret else text)[:300]


def cost(settings: LlmOrigin, tokens_in: int, tokens_out: int) -> float:
    """Price in the settings' currency."""
    return (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6


def digest(used: Mapping[str, Reply]) -> str:
    """SHA-256 over the replies used, whatever order they came in."""
    lines = sorted(f"{key} {json.dumps(asdict(reply), sort_keys=True)}\n" for key, reply in used.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def connect(settings: LlmOrigin, log: ReplyLog) -> Client:
    """A client for the endpoint; UserError where the key's variable is not set or the address is none."""
    secret = os.environ.get(settings.key_env, "").strip() if settings.key_env else ""
    if settings.key_env and not secret:
        raise UserError(f"semifactuals.origin.key_env: environment variable {settings.key_env} is not set")
    address = expand(settings.base_url).rstrip("/") + "/"
    if not address.startswith(("http://", "https://")):
        raise UserError(f"semifactuals.origin.base_url: '{address}' is no http(s) address")
    if not secret.isascii() or any(c.isspace() for c in secret):
        raise UserError(f"semifactuals.origin.key_env: {settings.key_env} holds characters that no key has")
    http = httpx2.AsyncClient(
        base_url=address,
        headers={"Authorization": f"Bearer {secret}"} if secret else {},
        timeout=settings.timeout,
        limits=httpx2.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency),
    )
    return Client(settings, log, http, secret)


def _message(response: httpx2.Response) -> str:
    """What the body says went wrong."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        return response.text or response.reason_phrase


def _retry_after(response: httpx2.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", 0)))
    except ValueError:
        return 0.0  # a date: our own back-off will do

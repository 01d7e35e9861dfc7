"""One request to an OpenAI-compatible endpoint, with its retries; bodies and replies are the caller's.

What failed in passing (lost connection, time-out, HTTP 408, 409, 425, 429, 5xx, a body that is not what was asked for)
is tried again after backoff * 2^n seconds, or after what `Retry-After` says. What the server will not do for this
request (other 4xx: too long, filtered) is Refused. A wrong key or address stops everything at once: UserError.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from tokencredit.study.base import expand
from tokencredit.study.endpoint import EndpointSettings
from tokencredit.study.errors import UserError

AGAIN = frozenset({408, 409, 425, 429})
LONGEST_WAIT = 60.0  # seconds between two tries, whatever the server asks for

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """No reply: finish is "rejected" (HTTP 4xx) or "unanswered" (all retries failed)."""

    finish: str
    reason: str


class Failed(Exception):
    """A try that may succeed when repeated; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


@dataclass
class Endpoint:
    """where: the settings' place in the study, for messages; tries_failed counts what had to be repeated."""

    settings: EndpointSettings
    where: str
    model: str
    http: httpx2.AsyncClient
    secret: str = ""
    tries_failed: int = 0

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T | Refused:
        """`read` of the answered JSON; a read that raises ValueError, LookupError, TypeError or AttributeError means
        that the body is not what was asked for."""
        return await self._send("POST", path, body, read)

    async def get(self, path: str, read: Callable[[Any], T]) -> T | Refused:
        return await self._send("GET", path, None, read)

    async def _send(
        self, verb: str, path: str, body: Mapping[str, Any] | None, read: Callable[[Any], T]
    ) -> T | Refused:
        reason, wait = "", 0.0
        for n in range(self.settings.retries + 1):
            if n:
                self.tries_failed += 1
                pause = self.settings.backoff * 2 ** (n - 1) * random.uniform(0.75, 1.25)  # touches no result
                await asyncio.sleep(min(max(pause, wait), LONGEST_WAIT))
            try:
                async with asyncio.timeout(self.settings.timeout):
                    response = await self.http.request(verb, path, json=body)
                return self._read(response, read)
            except TimeoutError:
                reason, wait = f"no reply within {self.settings.timeout:g} s", 0.0
            except httpx2.RequestError as error:
                reason, wait = f"{type(error).__name__}: {self.clean(str(error))}".rstrip(": "), 0.0
            except Failed as failed:
                reason, wait = str(failed), failed.wait
        return Refused("unanswered", reason)

    def _read(self, response: httpx2.Response, read: Callable[[Any], T]) -> T | Refused:
        status, said = response.status_code, self.clean(_message(response))
        if status in (401, 403):
            named = f"environment variable {self.settings.key_env}" if self.settings.key_env else "no key (key_env)"
            raise UserError(f"{self.place}: HTTP {status}: {said}. The key sent: {named}")
        if status == 404 or 300 <= status < 400:
            raise UserError(f"{self.place}: HTTP {status}: {said}. Check base_url and model '{self.model}'")
        if status in AGAIN or status >= 500:
            raise Failed(f"HTTP {status}: {said}", _retry_after(response))
        if status >= 400:
            return Refused("rejected", f"HTTP {status}: {said}")
        try:
            return read(response.json())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Failed(f"HTTP {status} without a completion: {said}") from None

    @property
    def place(self) -> str:
        return f"{self.where}, {self.http.base_url}"

    def clean(self, text: str) -> str:
        """A message from outside, short and without the key (some servers repeat it)."""
        text = " ".join(text.split())
        return (text.replace(self.secret, "***") if self.secret else text)[:300]


def connect(settings: EndpointSettings, where: str, model: str) -> Endpoint:
    """UserError where the key's variable is not set or the address is none."""
    secret = os.environ.get(settings.key_env, "").strip() if settings.key_env else ""
    if settings.key_env and not secret:
        raise UserError(f"{where}.key_env: environment variable {settings.key_env} is not set")
    address = expand(settings.base_url).rstrip("/") + "/"
    if not address.startswith(("http://", "https://")):
        raise UserError(f"{where}.base_url: '{address}' is no http(s) address")
    if not secret.isascii() or any(c.isspace() for c in secret):
        raise UserError(f"{where}.key_env: {settings.key_env} holds characters that no key has")
    http = httpx2.AsyncClient(
        base_url=address,
        headers={"Authorization": f"Bearer {secret}"} if secret else {},
        timeout=settings.timeout,
        limits=httpx2.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency),
    )
    return Endpoint(settings, where, model, http, secret)


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

"""Semifactual perturbations by a language model: asked, validated, asked again, and by rules where it fails.

As in SCAPO (arXiv 2609.40360, section 2) all kinds of a problem are asked for in one JSON reply, with our own
instructions (llm_prompt.py). OUR CHOICE: each text passes the validator, with the gold answer at hand so that a text
that gives it away is refused; refused kinds are asked for again with the reason, `attempts` times in all; then rules
write them (`fallback`), and the row's origin says so. Counterfactuals always come from rules.

Given the replies, the rows are a function of problems, settings and seed: seeds of requests and the order of rows do
not depend on timing. replies.jsonl in the state folder holds every reply; a run that was cut short asks only the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tokencredit.problems.llm_client import Client, Reply, ReplyLog, connected, cost, digest
from tokencredit.problems.llm_prompt import messages, readings, response_format
from tokencredit.problems.semifactuals import make, row
from tokencredit.problems.validator import COUNTERFACTUAL, validate
from tokencredit.study.errors import GoOn, UserError
from tokencredit.study.origins import LlmOrigin
from tokencredit.study.seeds import derive

Json = dict[str, Any]


@dataclass
class Outcome:
    """What became of one problem: per kind the accepted text, and every refused text with its reason."""

    accepted: dict[str, str] = field(default_factory=dict)
    refused: list[tuple[str, str, str]] = field(default_factory=list)  # kind, text, reason
    attempts: int = 0
    unanswered: str = ""  # why no reply came, where none did


def make_llm(
    problems: Sequence[Mapping[str, Any]], kinds: Sequence[str], seed: int, settings: LlmOrigin, state: Path
) -> tuple[list[Json], Json]:
    """Rows of the table `semifactuals` (in the order of problems and kinds), and what the record says of the asking.

    `problems` have problem_id, problem, answer. Raises UserError where the endpoint cannot be used, and GoOn when
    asked to leave; in both cases what was answered is kept in `state`.
    """
    log = ReplyLog(state)
    try:
        outcomes, client = asyncio.run(_ask_all(problems, kinds, seed, settings, log))
    except asyncio.CancelledError:
        raise GoOn() from None
    finally:
        log.close()
    lost = [o.unanswered for o in outcomes if o.unanswered]
    if lost and settings.unanswered == "error":
        raise UserError(
            f"semifactuals.origin: {len(lost)} of {len(problems)} problems got no reply after {settings.retries} "
            f"retries (the first: {lost[0]}). What was answered is kept: run again to ask the rest, or set "
            f"unanswered: skip to treat their kinds as refused"
        )
    rows = [r for p, o in zip(problems, outcomes, strict=True) for r in _rows(p, kinds, seed, settings, o)]
    return rows, _summary(settings, outcomes, client)


async def _ask_all(
    problems: Sequence[Mapping[str, Any]], kinds: Sequence[str], seed: int, settings: LlmOrigin, log: ReplyLog
) -> tuple[list[Outcome], Client]:
    """One outcome per problem; `concurrency` problems are under way at a time."""
    client = connected(settings, log)
    outcomes = [Outcome() for _ in problems]
    wanted = tuple(k for k in kinds if k != COUNTERFACTUAL)
    waiting = iter(zip(problems, outcomes, strict=True))
    bar = tqdm(total=len(problems), desc=f"asking {settings.model}", unit="problem", mininterval=2)

    async def work() -> None:
        for problem, outcome in waiting:  # shared: each problem goes to one worker
            await _ask(client, problem, wanted, seed, outcome)
            bar.set_postfix_str(_spent(settings, log, client), refresh=False)
            bar.update()

    _leave_on_sigterm()
    try:
        async with client.endpoint.http, asyncio.TaskGroup() as group:
            for _ in range(min(settings.concurrency, len(problems))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        bar.close()
    return outcomes, client


def _leave_on_sigterm() -> None:
    """A scheduler's warning cancels what is under way; outside the main thread signals are left alone."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _spent(settings: LlmOrigin, log: ReplyLog, client: Client) -> str:
    """The progress line's end: tokens and price so far (earlier runs included), replies of this run, failed tries."""
    line = f"{log.tokens_in / 1e6:.3f} M tokens in, {log.tokens_out / 1e6:.3f} M out"
    if settings.price_in or settings.price_out:
        line += f", {cost(settings, log.tokens_in, log.tokens_out):.2f} {settings.currency}"
    line += f", {client.asked} replies now"
    return line + (f", {client.endpoint.tries_failed} tries failed" if client.endpoint.tries_failed else "")


# ---- one problem -----------------------------------------------------------------------------------


async def _ask(client: Client, problem: Mapping[str, Any], kinds: Sequence[str], seed: int, outcome: Outcome) -> None:
    """Ask until every kind has a valid text, at most `attempts` times."""
    refused: dict[str, tuple[str, str]] = {}
    for attempt in range(client.settings.attempts):
        left = [k for k in kinds if k not in outcome.accepted]
        if not left:
            return
        said = messages(problem["problem"], left, {k: v for k, v in refused.items() if k in left})
        body = request(client.settings, said, left, derive(seed, "llm", problem["problem_id"], attempt))
        reply = await client.ask(body)
        if reply.finish == "unanswered":
            outcome.unanswered = reply.refusal
            return
        outcome.attempts += 1
        for kind, text, reason in judge(reply, problem, left, client.settings.novelty):
            if reason:
                outcome.refused.append((kind, text, reason))
                refused[kind] = text, reason
            else:
                outcome.accepted[kind] = text
        if reply.finish == "rejected":
            return  # the server's word on this request will not change


def request(settings: LlmOrigin, said: list[dict[str, str]], kinds: Sequence[str], seed: int) -> Json:
    """The body of a request."""
    body: Json = {"model": settings.model, "messages": said, "stream": False}
    body |= {"temperature": settings.temperature} if settings.temperature is not None else {}
    body |= {"max_tokens": settings.max_tokens} if settings.max_tokens is not None else {}
    body |= {"seed": seed % 2**31} if settings.seeded else {}
    return body | response_format(settings.json_mode, kinds) | settings.extra


def judge(
    reply: Reply, problem: Mapping[str, Any], kinds: Sequence[str], novelty: float
) -> Iterator[tuple[str, str, str]]:
    """(kind, text, reason against it or "") for each kind: of the reply's readings, the first that is valid."""
    objects = list(readings(reply.content, problem["problem"]))
    for kind in kinds:
        text, reason = "", _no_object(reply)
        for found in objects:
            drafted, against = _one(found.get(kind), kind, problem, novelty)
            if not against:
                text, reason = drafted, ""
                break
            if found is objects[0]:
                text, reason = drafted, against
        yield kind, text, reason


def _one(text: Any, kind: str, problem: Mapping[str, Any], novelty: float) -> tuple[str, str]:
    if not isinstance(text, str):
        return "", "the reply lacks this kind"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "", "the text is not Unicode"
    return text, validate(kind, problem["problem"], text, novelty, problem["answer"])


def _no_object(reply: Reply) -> str:
    if reply.finish == "rejected":
        return f"the server rejected the request: {reply.refusal}"
    if reply.refusal or reply.finish == "content_filter":
        return "the model refused"
    if reply.finish == "length":
        return "the reply was cut off at max_tokens"
    return "the reply holds no JSON object"


# ---- all problems ----------------------------------------------------------------------------------


def _rows(
    problem: Mapping[str, Any], kinds: Sequence[str], seed: int, settings: LlmOrigin, outcome: Outcome
) -> Iterator[Json]:
    """Per kind: what was refused (kept aside), then the accepted text, or what the rules make of it."""
    name = problem["problem_id"]
    for kind in kinds:
        refused = [(text, reason) for k, text, reason in outcome.refused if k == kind]
        for text, reason in refused:
            yield row(name, kind, text, "llm", reason)
        if kind in outcome.accepted:
            yield row(name, kind, outcome.accepted[kind], "llm")
        elif kind == COUNTERFACTUAL or settings.fallback == "rules":
            yield from make([problem], [kind], seed)
        elif not refused:
            yield row(name, kind, "", "llm", f"no reply: {outcome.unanswered}")


def _summary(settings: LlmOrigin, outcomes: Sequence[Outcome], client: Client) -> Json:
    """What the record says: a function of the replies, so that it is the same after an interruption."""
    used = client.used.values()
    tokens = [sum(r.tokens_in for r in used), sum(r.tokens_out for r in used)]
    return {
        "requests": len(client.used),
        "tokens_in": tokens[0],
        "tokens_out": tokens[1],
        "cost": round(cost(settings, *tokens), 6),
        "currency": settings.currency,
        "attempts": {str(n): count for n, count in sorted(Counter(o.attempts for o in outcomes).items())},
        "unanswered": sum(bool(o.unanswered) for o in outcomes),
        "replies_digest": digest(client.used),
    }

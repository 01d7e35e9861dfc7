"""Perturbations by a language model, against a local server: whatever it does, no unsound text gets through."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.problems.llm_server import Answer, Asked, Script, Server, good, good_texts
from tokencredit.problems import synthetic
from tokencredit.problems.llm import make_llm
from tokencredit.problems.llm_client import Reply, ReplyLog, request_key
from tokencredit.problems.stages import build_semifactuals
from tokencredit.problems.text import problem_id
from tokencredit.problems.validator import SEMIFACTUAL, validate
from tokencredit.study.base import parse
from tokencredit.study.errors import UserError
from tokencredit.study.origins import LlmOrigin
from tokencredit.study.tables import read_table, write_table

LATEX = "Let $\\frac{a}{b} \\times \\theta = 3$ and \\(\\nu \\neq 4\\).\nFind the value of \\begin{matrix} 1 \\\\ 2 \\end{matrix} times $\\beta$."
PROBLEMS = synthetic.generate("train", 12, seed=3)
SECRET = "sk-very-secret-0815"


def problem(text: str, answer: str = "12") -> dict[str, Any]:
    return {"problem_id": problem_id(text), "source": "own#1", "problem": text, "answer": answer,
            "answer_kind": "integer", "choices": [], "tags": []}  # fmt: skip


def settings(url: str, **more: Any) -> LlmOrigin:
    quick = {"kind": "llm", "base_url": url, "model": "m", "backoff": 0.01, "timeout": 20.0}
    return parse(LlmOrigin, {**quick, **more})


def ask(
    tmp_path: Path, script: Script = good, problems: list[dict[str, Any]] = PROBLEMS, kinds: tuple[str, ...] = SEMIFACTUAL,
    **more: Any,
) -> tuple[list[dict[str, Any]], dict[str, Any], Server]:  # fmt: skip
    with Server(script) as server:
        rows, told = make_llm(problems, kinds, 5, settings(server.url, **more), tmp_path / "state")
    return rows, told, server


# ---- what is asked, and what comes of it -----------------------------------------------------------


def test_sound_replies_become_the_rows(tmp_path: Path) -> None:
    rows, told, server = ask(tmp_path)
    texts = {p["problem_id"]: p["problem"] for p in PROBLEMS}
    assert [(r["problem_id"], r["kind"]) for r in rows] == [(p, k) for p in texts for k in SEMIFACTUAL]
    assert {(r["origin"], r["valid"]) for r in rows} == {("llm", True)}
    assert all(validate(r["kind"], texts[r["problem_id"]], r["text"]) == "" for r in rows)
    assert set(server.times().values()) == {1}
    assert told["requests"] == 12 and told["attempts"] == {"1": 12}


def test_the_request_carries_the_settings_and_never_the_answer(tmp_path: Path) -> None:
    gold = "a gold answer like no other"
    _, _, server = ask(
        tmp_path, problems=[problem(p["problem"], gold) for p in PROBLEMS], temperature=0.25, max_tokens=77,
        json_mode="schema", extra={"reasoning_effort": "low"},
    )  # fmt: skip
    seeds = set()
    for asked in server.asked:
        assert gold not in json.dumps(asked.body)
        assert asked.body["model"] == "m" and asked.body["temperature"] == 0.25 and asked.body["max_tokens"] == 77
        assert asked.body["reasoning_effort"] == "low"
        assert asked.body["response_format"]["json_schema"]["schema"]["required"] == list(SEMIFACTUAL)
        assert "Authorization" not in asked.headers
        seeds.add(asked.body["seed"])
    assert len(seeds) == len(PROBLEMS)


def test_what_a_server_may_not_know_can_be_left_out(tmp_path: Path) -> None:
    _, _, server = ask(tmp_path, temperature=None, max_tokens=None, seeded=False, json_mode="none")
    assert {tuple(sorted(a.body)) for a in server.asked} == {("messages", "model", "stream")}


def test_rows_are_a_function_of_the_replies(tmp_path: Path) -> None:
    """Concurrency, and the order and timing of replies, change nothing; nor does a second run from the log."""
    jumbled = lambda asked: Answer(**(good(asked).__dict__ | {"delay": random.random() / 50}))  # noqa: E731
    one, first, server = ask(tmp_path / "a", concurrency=1)
    assert server.most_at_once == 1
    many, second, server = ask(tmp_path / "b", jumbled, concurrency=6)
    assert 1 < server.most_at_once <= 6
    again, third, server = ask(tmp_path / "b", concurrency=3)
    assert server.asked == []
    assert one == many == again
    assert first == second == third


def test_refused_kinds_are_asked_for_again_with_the_reason(tmp_path: Path) -> None:
    def script(asked: Asked) -> Answer:
        texts = good_texts(asked)
        if asked.nth == 1:
            texts["typo_noise"] = texts["scenario_wrap"] = asked.problem
        return Answer(json.dumps(texts))

    rows, told, server = ask(tmp_path, script)
    assert set(server.times().values()) == {2}
    for asked in server.asked:
        assert asked.kinds == (list(SEMIFACTUAL) if asked.nth == 1 else ["typo_noise", "scenario_wrap"])
        assert ('"reason": "unchanged"' in asked.user) == (asked.nth == 2)
    assert told["attempts"] == {"2": 12}
    assert Counter((r["kind"], r["valid"]) for r in rows if not r["valid"]) == {
        ("typo_noise", False): 12, ("scenario_wrap", False): 12,
    }  # fmt: skip
    assert sum(r["valid"] for r in rows) == 12 * 4


# ---- replies that are wrong ------------------------------------------------------------------------

WALK = "Maria walks to the garden. She picks 12 flowers. How many flowers does she have?"
ONE = problem(WALK)


def spoil(asked: Asked, edit: Callable[[str], str]) -> Answer:
    return Answer(json.dumps({kind: edit(text) for kind, text in good_texts(asked).items()}))


WRONG: dict[str, tuple[Script, str]] = {
    "refused": (lambda a: Answer(None, refusal="I can't help with that."), "the model refused"),
    "filtered": (lambda a: Answer("", finish="content_filter"), "the model refused"),
    "prose": (lambda a: Answer("Sorry, I cannot rewrite this problem."), "the reply holds no JSON object"),
    "broken JSON": (lambda a: Answer(good(a).content[:-20]), "the reply holds no JSON object"),
    "a list": (lambda a: Answer(json.dumps(list(good_texts(a).values()))), "the reply holds no JSON object"),
    "cut off": (lambda a: Answer(good(a).content[:-20], finish="length"), "the reply was cut off at max_tokens"),
    "other keys": (lambda a: Answer(json.dumps({"text": a.problem})), "the reply lacks this kind"),
    "numbers": (lambda a: Answer(json.dumps(dict.fromkeys(a.kinds, 12))), "the reply lacks this kind"),
    "half a pair": (lambda a: Answer('{"paraphrase": "\\ud800", "typo_noise": "\\ud800"}'), "the text is not Unicode"),
    "changed number": (lambda a: spoil(a, lambda t: t.replace("12", "21")), ""),
    "hint": (lambda a: spoil(a, lambda t: t + " Hint: count them."), ""),
    "leak": (lambda a: spoil(a, lambda t: t + " [tag: a12bc]"), ""),
    "condition": (lambda a: spoil(a, lambda t: t.replace("12", "12 or more")), ""),
    "empty": (lambda a: spoil(a, lambda t: ""), "empty"),
    "an error as content": (lambda a: Answer(json.dumps({"error": "overloaded"})), "the reply lacks this kind"),
    "nothing": (lambda a: Answer(None), "the reply holds no JSON object"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_kind_that_keeps_failing_falls_to_the_rules(tmp_path: Path, what: str) -> None:
    script, reason = WRONG[what]
    kinds = ("paraphrase", "typo_noise")
    rows, _, server = ask(tmp_path, script, [ONE], kinds, attempts=2)
    assert server.times()[WALK] == 2
    for kind in kinds:
        mine = [r for r in rows if r["kind"] == kind]
        assert [(r["origin"], r["valid"]) for r in mine] == [("llm", False), ("llm", False), ("rule", True)]
        assert all(r["reason"].startswith(reason) and r["reason"] for r in mine[:2]), mine
    rows, *_ = ask(tmp_path, script, [ONE], kinds, attempts=2, fallback="none")
    assert {(r["origin"], r["valid"]) for r in rows} == {("llm", False)}


def test_an_answer_in_the_tail_is_a_leak(tmp_path: Path) -> None:
    said = {"irrelevant_context": f"{WALK} [tag: a12bc]", "scenario_wrap": f"During a break, {WALK}"}
    rows, *_ = ask(tmp_path, lambda a: Answer(json.dumps(said)), [ONE], tuple(said), attempts=1, fallback="none")
    assert [r["reason"] for r in rows] == ["the text gives the answer away", ""]
    rows, *_ = ask(tmp_path / "b", lambda a: Answer(json.dumps(said)), [problem(WALK, "13")], tuple(said), attempts=1)
    assert [r["reason"] for r in rows] == ["", ""]


def wrapped(text: str) -> str:
    return f"During a short break, {text}"


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"scenario_wrap": wrapped(LATEX)}),
        "Here you are:\n```json\n" + json.dumps({"scenario_wrap": wrapped(LATEX)}, indent=2) + "\n```\nAnything else?",
        "<think>{not this}</think>" + json.dumps({"scenario_wrap": wrapped(LATEX)}),
        json.dumps({"scenario_wrap": wrapped(LATEX).replace("\\", "\\\\")}),  # doubled once too often
        '{"scenario_wrap": "' + wrapped(LATEX).replace("\n", "\\n") + '"}',  # left single
        '{"scenario_wrap": "' + wrapped(LATEX) + '"}',  # and with the line break as it is
        '{"scenario_wrap": "' + wrapped(LATEX).replace("\n", "\\n").replace("\\times", "\\\\times") + '"}',
    ],
)
def test_backslashes_and_wrappings_are_read_as_they_were_meant(tmp_path: Path, content: str) -> None:
    rows, *_ = ask(tmp_path, lambda a: Answer(content), [problem(LATEX)], ("scenario_wrap",), attempts=1)
    assert [(r["valid"], r["origin"]) for r in rows] == [(True, "llm")], rows
    assert rows[0]["text"] == wrapped(LATEX)


def test_counterfactuals_come_from_the_rules(tmp_path: Path) -> None:
    rows, _, server = ask(tmp_path, kinds=("typo_noise", "counterfactual"))
    assert all(a.kinds == ["typo_noise"] for a in server.asked)
    assert Counter((r["kind"], r["origin"]) for r in rows) == {
        ("typo_noise", "llm"): 12,
        ("counterfactual", "rule"): 12,
    }


# ---- connections that fail -------------------------------------------------------------------------

PASSING: dict[str, Answer] = {
    "429": Answer(status=429, headers={"Retry-After": "0.05"}),
    "500": Answer(status=500),
    "503 with a page": Answer(status=503, raw=b"<html>Bad gateway</html>"),
    "hang-up": Answer("x" * 5000, hang_up=True),
    "slow": Answer(delay=1.0),
    "no completion": Answer(raw=b"<html>Welcome</html>"),
    "an empty list": Answer(raw=b'{"choices": []}'),
    "an odd body": Answer(raw=b'["choices"]'),
    "an error with status 200": Answer(raw=b'{"error": {"message": "busy"}}'),
}


@pytest.mark.parametrize("what", PASSING)
def test_what_fails_in_passing_is_tried_again(tmp_path: Path, what: str) -> None:
    script = lambda a: PASSING[what] if a.nth <= 2 else good(a)  # noqa: E731
    rows, told, server = ask(tmp_path, script, PROBLEMS[:3], timeout=0.4)
    assert set(server.times().values()) == {3}
    assert all(r["valid"] and r["origin"] == "llm" for r in rows)
    assert told["unanswered"] == 0


def test_the_server_says_how_long_to_wait(tmp_path: Path) -> None:
    started = time.monotonic()
    ask(tmp_path, lambda a: Answer(status=429, headers={"Retry-After": "0.6"}) if a.nth == 1 else good(a), [ONE])
    assert time.monotonic() - started >= 0.6


def test_problems_without_any_reply(tmp_path: Path) -> None:
    bad = PROBLEMS[4]["problem"]
    script = lambda a: Answer(status=500, error="out of memory") if a.problem == bad else good(a)  # noqa: E731
    with pytest.raises(
        UserError, match=r"1 of 12 problems got no reply after 1 retries .the first: HTTP 500: out of memory"
    ):
        ask(tmp_path, script, retries=1)
    rows, told, server = ask(tmp_path, script, retries=1, unanswered="skip")
    assert set(server.times()) == {bad}  # the others had been answered
    assert told["unanswered"] == 1
    assert Counter(r["origin"] for r in rows) == {"llm": 44, "rule": 4}
    rows, *_ = ask(tmp_path, script, retries=1, unanswered="skip", fallback="none")
    assert [r["reason"] for r in rows if not r["valid"]] == ["no reply: HTTP 500: out of memory"] * 4


def test_a_request_that_the_server_will_not_have(tmp_path: Path) -> None:
    bad = PROBLEMS[4]["problem"]
    script = lambda a: Answer(status=400, error="too long") if a.problem == bad else good(a)  # noqa: E731
    rows, _, server = ask(tmp_path, script)
    assert server.times()[bad] == 1
    refused = [r for r in rows if not r["valid"]]
    assert [r["reason"] for r in refused] == ["the server rejected the request: HTTP 400: too long"] * 4
    assert sum(r["valid"] for r in rows) == 48


def test_an_endpoint_that_only_fails_is_given_up(tmp_path: Path) -> None:
    with Server(lambda a: Answer(status=400, error="unknown parameter response_format")) as server:
        with pytest.raises(UserError, match=r"8 requests in a row failed, .* unknown parameter response_format"):
            make_llm(PROBLEMS, SEMIFACTUAL, 5, settings(server.url), tmp_path)
        assert len(server.asked) < 12 + 8
    with pytest.raises(UserError, match=r"in a row failed.*Connect"):  # nobody listens there any more
        make_llm(PROBLEMS, SEMIFACTUAL, 5, settings(server.url, retries=0), tmp_path)


@pytest.mark.parametrize("status", [401, 403, 404, 307])
def test_a_wrong_key_or_address_stops_at_once_and_shows_no_key(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OWN_KEY", SECRET)
    script = lambda a: Answer(status=status, error=f"bad key {a.headers['Authorization']}")  # noqa: E731
    with pytest.raises(UserError, match=f"HTTP {status}: bad key Bearer ") as caught:
        ask(tmp_path, script, key_env="OWN_KEY", concurrency=1)
    assert SECRET not in str(caught.value) + str(capfd.readouterr())


def test_a_key_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OWN_KEY", raising=False)
    with pytest.raises(UserError, match="environment variable OWN_KEY is not set"):
        make_llm(PROBLEMS, SEMIFACTUAL, 5, settings("http://127.0.0.1:9/v1", key_env="OWN_KEY"), tmp_path)
    with pytest.raises(UserError, match="no http"):
        make_llm(PROBLEMS, SEMIFACTUAL, 5, settings("localhost:8000"), tmp_path)


# ---- money, the log, interruptions -----------------------------------------------------------------


def test_price_and_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, told, _ = ask(tmp_path, price_in=2.0, price_out=10.0, currency="EUR")
    assert (told["tokens_in"], told["tokens_out"]) == (12_000, 2_400)  # the server counts 1000 and 200 a reply
    assert told["cost"] == pytest.approx(0.012 * 2 + 0.0024 * 10) and told["currency"] == "EUR"
    assert "0.012 M tokens in, 0.002 M out, 0.05 EUR, 12 replies now" in capfd.readouterr().err


def test_no_more_is_spent_than_was_granted(tmp_path: Path) -> None:
    prices = {"price_in": 1000.0, "price_out": 0.0}  # 1 a reply
    with pytest.raises(UserError, match="max_cost of 5 USD is spent"):
        ask(tmp_path, max_cost=5.0, concurrency=1, **prices)
    assert len(ReplyLog(tmp_path / "state").replies) == 5
    _, told, server = ask(tmp_path, max_cost=100.0, **prices)
    assert len(server.asked) == 7 and told["cost"] == 12.0


def test_the_log_survives_torn_lines(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path)
    for n in range(3):
        log.add(f"k{n}", Reply(f"text {n} \ud800"))
    log.close()
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-9])
    log = ReplyLog(tmp_path)
    assert sorted(log.replies) == ["k0", "k1"]
    log.add("k2", Reply("again"))
    log.close()
    assert {k: r.content for k, r in ReplyLog(tmp_path).replies.items()} == {
        "k0": "text 0 \ud800", "k1": "text 1 \ud800", "k2": "again",
    }  # fmt: skip


def test_a_request_is_named_by_all_it_asks() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "seed": 1}
    keys = {request_key(body | change) for change in ({}, {"model": "n"}, {"seed": 2}, {"messages": []}, {"top_p": 1})}
    assert len(keys) == 5
    assert request_key(dict(reversed(body.items()))) == request_key(body)


def stage_files(folder: Path, url: str, **more: Any) -> tuple[Path, Path]:
    """Spec and problems of the stage, as the workflow writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = settings(url, concurrency=2, key_env="OWN_KEY", **more).model_dump(mode="json")
    spec = {"stage": "semifactuals", "seed": 5, "semifactuals": {"kinds": list(SEMIFACTUAL), "origin": origin}}
    (folder / "spec.json").write_text(json.dumps(spec))
    write_table("problems", PROBLEMS, folder / "problems.parquet")
    return folder / "spec.json", folder / "problems.parquet"


MAIN = "import sys; from tokencredit.cli import main; sys.exit(main(sys.argv[1:]))"


def command(folder: Path, spec: Path, problems: Path) -> list[str]:
    return [sys.executable, "-c", MAIN, "semifactuals", "--spec", str(spec), "--problems", str(problems),
            "--output", str(folder / "s.parquet"), "--record", str(folder / "s.json"), "--state", str(folder / "state"),
            "--log", str(folder / "s.log")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_kill_and_resume(tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle and started again: nothing is asked twice, and every byte is as if nothing had happened."""
    environment = os.environ | {"OWN_KEY": SECRET, "OMP_NUM_THREADS": "1"}
    slow = lambda asked: Answer(**(good(asked).__dict__ | {"delay": 0.15}))  # noqa: E731
    with Server(slow) as server:
        files = stage_files(tmp_path, server.url)
        words = command(tmp_path, *files)
        job = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
        log = tmp_path / "state" / "replies.jsonl"
        while not log.exists() or log.read_bytes().count(b"\n") < 4:
            assert job.poll() is None, job.stderr and job.stderr.read()
            time.sleep(0.02)
        job.send_signal(how)
        assert job.wait() == (85 if how == signal.SIGTERM else -signal.SIGKILL)
        assert not (tmp_path / "s.parquet").exists()
        known = {json.loads(line)["key"] for line in log.read_text().splitlines()}
        before = len(server.asked)
        assert subprocess.run(words, env=environment, capture_output=True, check=True).returncode == 0
        resumed = server.asked[before:]
        assert not {request_key(a.body) for a in resumed} & known
        assert len(resumed) == len(PROBLEMS) - len(known)
        monkeypatch.setenv("OWN_KEY", SECRET)
        spec = json.loads(files[0].read_text())
        build_semifactuals(spec, files[1], tmp_path / "whole.parquet", tmp_path / "whole.json", tmp_path / "other")
    assert (tmp_path / "whole.parquet").read_bytes() == (tmp_path / "s.parquet").read_bytes()
    cut, whole = (json.loads((tmp_path / name).read_text()) for name in ("s.json", "whole.json"))
    assert cut["llm"] == whole["llm"]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_the_stage_counts_origins_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", SECRET)

    def script(asked: Asked) -> Answer:
        texts = good_texts(asked)
        texts["typo_noise"] = asked.problem.replace("more", "fewer") + " 7"
        return Answer(json.dumps(texts))

    with Server(script) as server:
        files = stage_files(tmp_path, server.url, attempts=2)
        build_semifactuals(json.loads(files[0].read_text()), files[1], tmp_path / "s.parquet", tmp_path / "s.json")
    assert {a.headers["Authorization"] for a in server.asked} == {f"Bearer {SECRET}"}
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["acceptance"] == dict.fromkeys(SEMIFACTUAL, 1.0)
    assert record["origins"]["typo_noise"] == {"rule": 12} and record["origins"]["paraphrase"] == {"llm": 12}
    assert sum(record["refused"]["typo_noise"]["reasons"].values()) == 24
    assert len(record["llm"]["replies_digest"]) == 64 and record["llm"]["requests"] == 24
    rows = read_table("semifactuals", tmp_path / "s.parquet").to_pylist()
    assert Counter(r["valid"] for r in rows) == {True: 48, False: 24}
    assert SECRET not in (tmp_path / "s.json").read_text()

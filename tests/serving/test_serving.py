"""Engines behind a server, and copies of one: the same tokens as in this process, and clear errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sampling.folders import TEXT, evaluate_checkpoint, make_checkpoint, make_folder
from tests.sampling.models import PROMPTS
from tokencredit.model.checkpoint import open_checkpoint
from tokencredit.problems import synthetic
from tokencredit.problems.llm import make_llm
from tokencredit.sampling import Params, Request, make_engine
from tokencredit.sampling.opened import open_engine
from tokencredit.sampling.parallel import ParallelEngine
from tokencredit.serving.library import Library
from tokencredit.serving.server import listening
from tokencredit.study.base import parse
from tokencredit.study.config import Evaluation, Model
from tokencredit.study.errors import UserError
from tokencredit.study.origins import LlmOrigin
from tokencredit.study.tables import read_json, write_json

NAME = "m.grpo.seed0.step2"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("results")
    make_checkpoint(where, "lora", "fast", max_position_embeddings=4096)
    return where


@pytest.fixture(scope="module")
def url(results: Path) -> Iterator[str]:
    with listening(Library(results)) as address:
        yield address


def checkpoint(results: Path) -> Path:
    return results / "train/m/grpo/seed0/step2/checkpoint.json"


def post(url: str, path: str, body: Any, status: int = 200) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(f"{url}/{path}", data)
    if status == 200:
        with urllib.request.urlopen(asked) as answer:
            return json.load(answer)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == status
    return json.load(refused.value)["error"]["message"]


# ---- evaluation through a server -------------------------------------------------------------------


def test_evaluation_through_a_server_gives_the_same_samples(results: Path, url: str, tmp_path: Path) -> None:
    own = evaluate_checkpoint(checkpoint(results), tmp_path / "own", 20)
    server = {"kind": "server", "base_url": url}
    table = evaluate_checkpoint(checkpoint(results), tmp_path / "served", 20, engine=server)
    assert table.equals(own)
    record = read_json(tmp_path / "served" / "record.json")
    assert record["engine"] == "ServerEngine" and record["served"] == {"name": NAME, "verified": True}
    assert "served" not in read_json(tmp_path / "own" / "record.json")


def test_an_address_from_the_environment(results: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVER", url)
    opened = open_checkpoint(checkpoint(results))
    engine = open_engine(opened, {"kind": "server", "base_url": "${MY_SERVER}"}, "cpu", "float32")
    requests = [Request(p, i) for i, p in enumerate(PROMPTS)]
    mine = open_engine(opened, "fast", "cpu", "float32")
    for params in (Params(9, 0.7, 1.0, (3, 30)), Params(5, 0.0)):
        for a, b in zip(engine.generate(requests, params), mine.generate(requests, params), strict=True):
            assert (a.tokens, a.finish) == (b.tokens, b.finish)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_text_alone_is_enough_where_ids_are_not_known(results: Path, url: str, tmp_path: Path) -> None:
    """What the server decodes is encoded again: texts are the server's; it draws with another, shorter seed."""
    server = {"kind": "server", "base_url": url, "token_ids": False}
    table = evaluate_checkpoint(checkpoint(results), tmp_path, 3, engine=server)
    assert table.num_rows == 6 and all(table.column("text").to_pylist())


def test_another_checkpoint_under_the_name_is_refused(results: Path, url: str, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path, "lora", "fast", max_position_embeddings=4096)
    content = read_json(other)
    write_json(other, {**content, "spec_hash": "another"})
    with pytest.raises(UserError, match="another checkpoint"):
        open_engine(open_checkpoint(other), {"kind": "server", "base_url": url}, "cpu", "float32")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "m.grpo.seed7.step2"}, r"does not serve 'm.grpo.seed7.step2' \(it has m.base.seed0.step0"),
        ({"model": "{cell}"}, "only model, method, seed, step"),
        ({"base_url": "http://127.0.0.1:9/v1", "retries": 0}, "127.0.0.1:9"),
        ({"base_url": "here"}, "no http"),
        ({"key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
    ],
)
def test_a_server_that_cannot_be_used(results: Path, url: str, change: dict[str, Any], said: str) -> None:
    opened = open_checkpoint(checkpoint(results))
    with pytest.raises(UserError, match=said):
        open_engine(opened, {"kind": "server", "base_url": url, **change}, "cpu", "float32")


def test_a_server_does_not_train(results: Path, url: str) -> None:
    source = {"kind": "folder", "path": "x"}
    with pytest.raises(UserError, match="engine"):
        parse(Model, {"source": source, "engine": {"kind": "server", "base_url": url}})
    assert parse(Evaluation, {"engine": {"kind": "server", "base_url": url}}).engine is not None
    assert parse(Evaluation, {"engine": "hf"}).engine == "hf"
    engine = open_engine(open_checkpoint(checkpoint(results)), {"kind": "server", "base_url": url}, "cpu", "float32")
    with pytest.raises(UserError, match="train with another engine"):
        engine.update(None)


# ---- the server itself -----------------------------------------------------------------------------


def test_every_checkpoint_is_listed_with_its_digest(results: Path, url: str) -> None:
    with urllib.request.urlopen(f"{url}/models") as answer:
        listed = {m["id"]: m["tokencredit"]["digest"] for m in json.load(answer)["data"]}
    assert set(listed) == {"m.base.seed0.step0", NAME}
    assert listed[NAME] == open_checkpoint(checkpoint(results)).digest


def test_samples_of_one_request(results: Path, url: str) -> None:
    body = {
        "model": NAME,
        "prompt": list(PROMPTS[0]),
        "max_tokens": 6,
        "n": 3,
        "seed": 11,
        "return_token_ids": True,
        "ignore_eos": True,
        "logprobs": 0,
    }
    answer = post(url, "completions", body)
    engine = open_engine(open_checkpoint(checkpoint(results)), "fast", "cpu", "float32")
    own = engine.generate([Request(PROMPTS[0], 11 + i) for i in range(3)], Params(6))
    assert [tuple(c["token_ids"]) for c in answer["choices"]] == [c.tokens for c in own]
    assert [c["logprobs"]["token_logprobs"] for c in answer["choices"]] == [
        pytest.approx(c.logprobs, abs=1e-5) for c in own
    ]
    assert answer["usage"] == {
        "prompt_tokens": len(PROMPTS[0]),
        "completion_tokens": 18,
        "total_tokens": 18 + len(PROMPTS[0]),
    }


def test_chat_goes_through_the_template(results: Path, url: str) -> None:
    messages = [{"role": "user", "content": TEXT}]
    answer = post(
        url,
        "chat/completions",
        {"model": NAME, "messages": messages, "max_tokens": 4, "seed": 1, "return_token_ids": True},
    )
    served = Library(results).open(NAME)
    text = served.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert answer["choices"][0]["prompt_token_ids"] == served.tokenizer.encode(text, add_special_tokens=False)
    assert answer["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("completions", b"{", 400, "not JSON"),
        ("completions", b"[]", 400, "not a JSON object"),
        ("completions", {"model": "nobody", "prompt": "a"}, 404, "no model 'nobody' here; there are m.base"),
        ("completions", {"prompt": 7}, 400, "prompt:"),
        ("completions", {"prompt": []}, 400, "prompt:"),
        ("completions", {"prompt": [10**9]}, 400, "other tokenizer"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens: a whole number"),
        ("completions", {"prompt": "a", "max_tokens": 10**9}, 400, "pass the model's context"),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature"),
        ("completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature: a number"),
        ("completions", {"prompt": "a", "top_p": 0}, 400, "top_p"),
        ("completions", {"prompt": "a", "stream": True}, 400, "stream"),
        ("completions", {"prompt": "a", "stop": ["x"]}, 400, "stop_token_ids"),
        ("completions", {"prompt": "a", "stop_token_ids": "x"}, 400, "stop_token_ids"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": "hello"}, 400, "messages"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_answered(url: str, path: str, body: Any, status: int, said: str) -> None:
    assert said in post(url, path, body, status)
    assert post(url, "completions", {"prompt": "a", "max_tokens": 1})["choices"]  # and the server goes on


def test_perturbations_are_asked_of_our_own_server(url: str, tmp_path: Path) -> None:
    """An untrained model writes no JSON: every kind falls to the rules, and the requests went through."""
    problems = synthetic.generate("train", 2, seed=3)
    settings = parse(LlmOrigin, {"kind": "llm", "base_url": url, "model": NAME, "attempts": 1, "max_tokens": 8})
    rows, told = make_llm(problems, ("paraphrase", "typo_noise"), 5, settings, tmp_path)
    assert {(r["valid"], r["origin"]) for r in rows} <= {(True, "rule"), (False, "llm")} and told["requests"] == 2


def test_a_model_folder_is_served_by_its_name(tmp_path: Path) -> None:
    model, folder = make_folder(tmp_path / "small", eos=[1, 40], chat=False)
    with listening(Library(folder)) as url:
        answer = post(
            url, "completions", {"prompt": [5, 6], "max_tokens": 5, "temperature": 0, "return_token_ids": True}
        )
        assert post(url, "chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 400).endswith(
            "use /v1/completions"
        )
    assert answer["model"] == "small"
    own = make_engine(model, kind="hf").generate([Request((5, 6), 0)], Params(5, 0.0, eos=(1, 40)))
    assert tuple(answer["choices"][0]["token_ids"]) == own[0].tokens


def test_a_folder_without_models(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a study's results"):
        Library(tmp_path)


@pytest.mark.slow
def test_the_command(results: Path) -> None:
    command = [sys.executable, "-m", "tokencredit.cli", "serve", str(results), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "running on" in line)
        url = line.split("running on ")[1].split()[0]
        assert post(f"{url}/v1", "completions", {"prompt": "a", "max_tokens": 2})["model"] == "m.base.seed0.step0"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)


# ---- copies ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_copies_give_the_samples_of_one(results: Path, tmp_path: Path) -> None:
    tables = [evaluate_checkpoint(checkpoint(results), tmp_path / str(n), 11, copies=n) for n in (1, 3)]
    assert tables[0].equals(tables[1])


class Faulty:
    """An engine that fails as its first request's seed says."""

    def generate(self, requests: Any, params: Any) -> Any:
        if not requests:
            return []
        if requests[0].seed == 1:
            raise UserError("a user's mistake")
        if requests[0].seed == 2:
            raise ValueError("a fault of ours")
        if requests[0].seed == 3:
            os._exit(9)
        return [(r.seed, os.environ["CUDA_VISIBLE_DEVICES"]) for r in requests]


def faulty(**settings: Any) -> Any:
    if settings:
        raise UserError(f"cannot open {settings}")
    return Faulty()


def test_a_copy_that_fails_is_heard_and_the_others_stay_in_step() -> None:
    engine = ParallelEngine(faulty, {}, [("3",), ("5", "6")])
    params = Params(1)
    try:
        for first, kind, said in ((1, UserError, "a user's mistake"), (2, RuntimeError, "a fault of ours")):
            with pytest.raises(kind, match=said):
                engine.generate([Request((1,), first), Request((1,), 7)], params)
            assert engine.generate([Request((1,), s) for s in (7, 8, 9)], params) == [(7, "3"), (8, "3"), (9, "5,6")]
        with pytest.raises(RuntimeError, match="exit code 9"):
            engine.generate([Request((1,), 7), Request((1,), 3)], params)
    finally:
        engine.close()
    assert not any(p.is_alive() for p in engine.processes)


def test_a_copy_that_cannot_open_is_an_error_at_once() -> None:
    with pytest.raises(UserError, match="cannot open"):
        ParallelEngine(faulty, {"a": 1}, [None, None])


def test_copies_need_as_many_devices(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    opened = open_checkpoint(checkpoint(results))
    with pytest.raises(UserError, match="2 copies of a model on 2 GPUs each, and this job has 3"):
        open_engine(opened, {"kind": "vllm", "tensor_parallel": 2}, "auto", "float32", copies=2)

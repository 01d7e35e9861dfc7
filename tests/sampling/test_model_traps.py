"""What real models do differently, through the chain from folder to graded text; every engine, as test_engines.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sampling.folders import TEXT, TOKENIZER, evaluate_folder, make_folder
from tests.sampling.models import VLLM, VLLM_SHAPE, forced_logprobs
from tokencredit.model.base import eos_ids
from tokencredit.model.policy import load_policy
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.sampling import Engine, Params, Request, make_engine
from tokencredit.study.config import Adapter, Prompt
from tokencredit.study.errors import UserError

INSIDE = bool(os.environ.get("TOKENCREDIT_VLLM"))
ENGINES: list[Any] = [VLLM] if INSIDE else ["fast", "hf"]
SHAPE: dict[str, Any] = VLLM_SHAPE if INSIDE else {}
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e if isinstance(e, str) else "vllm")


def sample(engine: Engine, prompter: Prompter, eos: tuple[int, ...], tokens: int = 20, temperature: float = 1.0) -> Any:
    requests = [Request(prompter.ids(TEXT), seed) for seed in range(40)]
    return requests, engine.generate(requests, Params(max_tokens=tokens, eos=eos, temperature=temperature))


@every_engine
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("pad", ["<|pad|>", "eos", None])
def test_padding_head_and_template_change_nothing(
    engine: Any, pad: str | None, chat: bool, tied: bool, tmp_path: Path
) -> None:
    """No engine pads by the tokenizer's pad token: it may be the end token, or missing."""
    if INSIDE and (chat, tied) != {"<|pad|>": (True, True), "eos": (True, False), None: (False, True)}[pad]:
        pytest.skip("vLLM takes seconds to start: each oddity once")
    model, folder = make_folder(tmp_path, pad=pad, chat=chat, tied=tied, eos=[1, 40, 77], **SHAPE)
    tokenizer, eos = load_tokenizer(folder), eos_ids(folder)
    assert eos == (1, 40, 77)
    assert (tokenizer.pad_token == tokenizer.eos_token) == (pad == "eos")
    if not chat:
        with pytest.raises(UserError, match="no chat template"):
            Prompter(tokenizer, Prompt(chat=True))
    requests, found = sample(make_engine(folder, kind=engine), Prompter(tokenizer, Prompt(chat=chat)), eos)
    for request, c in zip(requests, found, strict=True):
        with torch.no_grad():
            expected = forced_logprobs(model, request.prompt, c.tokens, 1.0)
        torch.testing.assert_close(torch.tensor(c.logprobs).double(), expected, rtol=0, atol=1e-4)
        assert (c.finish == "stop") == (c.tokens[-1] in eos)
        assert not set(c.tokens[:-1]) & set(eos)


@every_engine
def test_ids_the_tokenizer_does_not_know_are_sampled_and_read_as_nothing(engine: Any, tmp_path: Path) -> None:
    """Many models have more rows in the head than their tokenizer has tokens. Scores must count them all."""
    _, folder = make_folder(tmp_path, **SHAPE)
    prompter = Prompter(load_tokenizer(folder), Prompt(chat=True))
    _, found = sample(make_engine(folder, kind=engine), prompter, (1,))
    unknown = [[t for t in c.tokens if t >= TOKENIZER] for c in found]
    assert sum(map(len, unknown)) > 100
    for c in found:
        assert prompter.decode(c.tokens) == prompter.decode([t for t in c.tokens if t < TOKENIZER])
        assert "".join(prompter.pieces(c.tokens)) == prompter.decode(c.tokens)


@every_engine
@pytest.mark.parametrize("tied", [True, False])
def test_bfloat16_folder(engine: Any, tied: bool, tmp_path: Path) -> None:
    """Log-probabilities near those of a float32 pass over the same rounded weights, and near the trainer's."""
    model, folder = make_folder(tmp_path, tied=tied, dtype=torch.bfloat16, **SHAPE)
    prompter = Prompter(load_tokenizer(folder), Prompt(chat=True))
    policy = load_policy(folder, Adapter(kind="lora", rank=4), "bfloat16", "cpu", 1.0, seed=0)
    model = model.float()
    requests, found = sample(make_engine(folder, kind=engine), prompter, (1,))
    errors, gaps = [], []
    for request, c in zip(requests, found, strict=True):
        with torch.no_grad():
            exact = forced_logprobs(model, request.prompt, c.tokens, 1.0)
            trainer = policy.score([request.prompt], [c.tokens], "probe").logprob.double()
        errors.append((torch.tensor(c.logprobs).double() - exact).abs())
        gaps.append((torch.tensor(c.logprobs).double() - trainer).abs())
    assert torch.cat(errors).mean() < 0.1
    assert torch.cat(gaps).mean() < 0.1


@pytest.mark.skipif(INSIDE, reason="with vLLM: test_vllm_inside.py")
@pytest.mark.parametrize("kind", ["base", "lora", "full"])
def test_engines_evaluate_alike(kind: str, tmp_path: Path) -> None:
    tables = [evaluate_folder(tmp_path / engine, kind, engine, samples=12) for engine in ("fast", "hf")]
    assert tables[0].equals(tables[1])

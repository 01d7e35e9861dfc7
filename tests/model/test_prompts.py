"""Prompts and tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokencredit.model.prompts import Prompter, load_tokenizer, prompt_hash, render
from tokencredit.model.scratch import save_tokenizer, train_tokenizer
from tokencredit.study import UserError
from tokencredit.study.config import Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(["Tom has 12 apples. How many now?"] * 3, 130), path)
    return path


def test_template_is_literal() -> None:
    """Braces of LaTeX in the template or the problem are text, not placeholders."""
    prompt = Prompt(template="In \\boxed{}: {problem}")
    assert render(prompt, "x^{2} {problem}") == "In \\boxed{}: x^{2} {problem}"


def test_options_are_lettered() -> None:
    assert render(Prompt(template="{problem}"), "Which?", ["red", "blue"]) == "Which?\n(A) red\n(B) blue"


def test_direct_loading_gives_what_auto_loading_gives(folder: Path) -> None:
    from transformers import AutoTokenizer

    direct, auto = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    text = "Answer in \\boxed{}. Tom has 12 apples."
    message = [{"role": "user", "content": text}]
    assert direct.encode(text) == auto.encode(text)
    for tokenizer in (direct, auto):
        shown = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        assert shown == f"<|user|>{text}<|assistant|>"


def test_ids_and_text(folder: Path) -> None:
    prompter = Prompter(load_tokenizer(folder), Prompt(template="{problem}", chat=True))
    ids = prompter.ids("Tom has 12 apples.")
    assert prompter.decode(ids) == "Tom has 12 apples."
    special = prompter.tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
    assert [ids[0], ids[-1]] == special
    assert prompt_hash(ids) != prompt_hash(ids[:-1])


def test_limits_and_templates_are_checked(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    with pytest.raises(UserError, match="the limit is 3"):
        Prompter(tokenizer, Prompt(), limit=3).ids("Tom has 12 apples.")
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        Prompter(tokenizer, Prompt(chat=True))

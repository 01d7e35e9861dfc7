"""Prompts and tokenizers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def byte_level(texts: list[str]) -> Any:
    """A byte-level BPE tokenizer with few merges, so that characters are split over tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, special_tokens=["<eos>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")


def metaspace(texts: list[str]) -> Any:
    """A tokenizer as of SentencePiece: blanks as U+2581, characters it does not know as bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["<eos>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *sorted(set("".join(texts)) - {" "})]
    vocab = {piece: i for i, piece in enumerate(known)}
    pairs = [("\u2581", c) for c in "abft" if c in vocab]
    vocab |= {a + b: len(vocab) + i for i, (a, b) in enumerate(pairs)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=pairs, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")


TEXTS = [
    "So 12+5=17. Answer \\boxed{17}",
    "naïve — 数学 is 🎉 fun\n\n  twice  🧮🧮",
    "é" * 7,
    " leading and trailing ",
    "",
]


@pytest.mark.parametrize("kind", [byte_level, metaspace])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_to_the_text(kind: Callable[[list[str]], Any], text: str) -> None:
    tokenizer = kind(["So 12+5=17. Answer \\boxed{17}", "naive fun twice leading and trailing"])
    prompter = Prompter(tokenizer, Prompt(template="{problem}"))
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    pieces = prompter.pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == prompter.decode(ids)
    assert pieces[-1] == "", "a special token has no text"


def test_a_character_belongs_to_the_token_that_finishes_it() -> None:
    tokenizer = byte_level(["plain text"])
    prompter = Prompter(tokenizer, Prompt(template="{problem}"))
    ids = tokenizer.encode("a🎉b", add_special_tokens=False)
    pieces = prompter.pieces(ids)
    assert pieces[0] == "a"
    assert pieces[-1] == "b"
    assert [p for p in pieces if p] == ["a", "🎉", "b"]


def test_bytes_that_are_no_text_lose_nothing() -> None:
    """Ids of half characters, in any order, still add up to what the tokenizer makes of them."""
    tokenizer = byte_level(["plain text"])
    prompter = Prompter(tokenizer, Prompt(template="{problem}"))
    rng = random.Random(0)
    for _ in range(50):
        ids = [rng.randrange(1, 280) for _ in range(40)]
        pieces = prompter.pieces(ids)
        assert "".join(pieces) == prompter.decode(ids)


@pytest.mark.parametrize("kind", [byte_level, metaspace])
def test_a_response_of_split_characters_takes_linear_time(kind: Callable[[list[str]], Any]) -> None:
    """Every character of three bytes split over three tokens, as in a language the vocabulary has never seen."""
    tokenizer = kind(["plain text"])
    prompter = Prompter(tokenizer, Prompt(template="{problem}"))
    text = "数学" * 400
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) >= 2400
    decoded, decode = [], prompter.decode
    prompter.decode = lambda tokens: decoded.append(len(tokens)) or decode(tokens)  # type: ignore[method-assign, func-returns-value]
    pieces = prompter.pieces(ids)
    assert "".join(pieces) == decode(ids)
    assert [p for p in pieces if p.strip()] == list(text)
    assert sum(decoded) <= 12 * len(ids)


def test_bytes_in_any_order_take_linear_time() -> None:
    prompter = Prompter(byte_level(["plain text"]), Prompt(template="{problem}"))
    rng = random.Random(1)
    ids = [rng.randrange(1, 257) for _ in range(3000)]
    decoded, decode = [], prompter.decode
    prompter.decode = lambda tokens: decoded.append(len(tokens)) or decode(tokens)  # type: ignore[method-assign, func-returns-value]
    pieces = prompter.pieces(ids)
    assert "".join(pieces) == decode(ids)
    assert sum(decoded) <= 12 * len(ids)


def test_a_response_cut_within_a_character_ends_with_half_of_it() -> None:
    tokenizer = byte_level(["plain text"])
    prompter = Prompter(tokenizer, Prompt(template="{problem}"))
    whole = tokenizer.encode("ok 🎉", add_special_tokens=False)
    pieces = prompter.pieces([*whole[:-1], tokenizer.eos_token_id])
    assert "".join(pieces).startswith("ok \ufffd")
    assert pieces[-1] == "", "the special token takes no part of it"


def test_pieces_of_the_scratch_tokenizer(folder: Path) -> None:
    prompter = Prompter(load_tokenizer(folder), Prompt(template="{problem}", chat=True))
    ids = prompter.ids("Tom has 12 apples.")
    pieces = prompter.pieces(ids)
    assert "".join(pieces) == "Tom has 12 apples."
    assert pieces[0] == pieces[-1] == "", "special tokens"

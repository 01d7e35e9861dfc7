"""Policies are loaded, saved as folders that transformers and peft read, and opened again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import tiny_model
from tokencredit.model.base import build_base, eos_ids
from tokencredit.model.checkpoint import export, open_checkpoint, publish, read_weights
from tokencredit.model.policy import Policy, load_policy
from tokencredit.study import UserError
from tokencredit.study.config import Adapter

IDS = torch.tensor([[3, 9, 27, 41, 5]])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m" / "base"
    tiny_model(dtype=torch.float32).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    spec = {"model": "m", "seed": 0, "source": {"kind": "folder", "path": str(folder)}, "prompt": {}, "dtype": "float32",
            "engine": "auto"}  # fmt: skip
    build_base(spec, folder.parent / "base.json", tmp_path / "state")
    return folder.parent / "base.json"


def load(base: Path, **adapter: Any) -> Policy:
    return load_policy(base.parent / "base", Adapter(**adapter), "float32", "cpu", 1.0, seed=5)


def shift(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01 * torch.arange(parameter.numel()).view_as(parameter).sin()


def saved(policy: Policy, base: Path, out: Path) -> Path:
    identity = {
        "model": "m",
        "method": "grpo",
        "seed": 1,
        "step": 4,
        "base": f"../../../{base.relative_to(out.parents[2])}",
    }
    export(policy, base.parent / "base", out.parent / "exported", identity, "hash")
    publish(out.parent / "exported", out)
    return out / "checkpoint.json"


def logits_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    model = tiny_model(seed=9, dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_checkpoint_computes_what_the_policy_computed(kind: str, base: Path, tmp_path: Path) -> None:
    policy = load(base, kind=kind, rank=4, alpha=8)
    shift(policy)
    with torch.no_grad():
        want = policy.model(input_ids=IDS).logits
    opened = open_checkpoint(saved(policy, base, tmp_path / "train" / "cell" / "step4"))
    assert opened.kind == kind
    assert opened.identity == {"model": "m", "method": "grpo", "seed": 1, "step": 4}
    torch.testing.assert_close(logits_of(read_weights(opened)), want, rtol=1e-5, atol=1e-5)


def test_full_checkpoint_is_a_complete_model_folder(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    policy = load(base)
    shift(policy)
    record = saved(policy, base, tmp_path / "train" / "cell" / "step4")
    model = AutoModelForCausalLM.from_pretrained(str(record.parent)).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=IDS).logits, policy.model(input_ids=IDS).logits)
    assert (record.parent / "tokenizer_config.json").exists()


def test_lora_checkpoint_is_peft_s_own(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy = load(base, kind="lora", rank=4, alpha=8)
    shift(policy)
    record = saved(policy, base, tmp_path / "train" / "cell" / "step4")
    plain = AutoModelForCausalLM.from_pretrained(str(base.parent / "base"))
    model = PeftModel.from_pretrained(plain, str(record.parent)).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=IDS).logits, policy.model(input_ids=IDS).logits)


def test_lora_starts_as_the_base_and_from_its_seed_alone(base: Path) -> None:
    torch.manual_seed(1)
    a = load(base, kind="lora", rank=4, alpha=8)
    torch.manual_seed(2)
    b = load(base, kind="lora", rank=4, alpha=8)
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
    with torch.no_grad():
        torch.testing.assert_close(a.model(input_ids=IDS).logits, load(base).model(input_ids=IDS).logits)
    assert not any("embed" in n or "lm_head" in n for n, p in a.model.named_parameters() if p.requires_grad)


def test_untrained_model_is_opened_by_its_own_record(base: Path) -> None:
    opened = open_checkpoint(base)
    assert opened.identity == {"model": "m", "method": "base", "seed": 0, "step": 0}
    with torch.no_grad():
        want = tiny_model(dtype=torch.float32)(input_ids=IDS).logits
    torch.testing.assert_close(logits_of(read_weights(opened)), want)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damaged_weights_are_named(damage: str, base: Path, tmp_path: Path) -> None:
    record = saved(load(base), base, tmp_path / "train" / "cell" / "step4")
    for victim, opened in (
        (record.parent / "model.safetensors", record),
        (base.parent / "base" / "model.safetensors", base),
    ):
        content = victim.read_bytes()
        victim.unlink()  # the published file may be a link
        if damage != "remove":
            changed = content[:-9] if damage == "truncate" else content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
            victim.write_bytes(changed)
        with pytest.raises(UserError, match=r"model\.safetensors: (damaged|missing)"):
            open_checkpoint(opened)
        victim.write_bytes(content)


def test_soft_capped_logits_are_refused() -> None:
    model = tiny_model(dtype=torch.float32)
    real = model.forward
    model.forward = lambda *a, **k: _capped(real(*a, **k))
    with pytest.raises(UserError, match="changes its logits after the output layer"):
        Policy(model, 1.0)


def _capped(out: Any) -> Any:
    out.logits = 3 * torch.tanh(out.logits / 3)
    return out


def test_every_end_id_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert eos_ids(tmp_path) == (3,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 7]}))
    assert eos_ids(tmp_path) == (3, 7)


def test_dropout_is_off_and_checkpointing_changes_no_gradient(base: Path) -> None:
    """Activation checkpointing recomputes; same loss, same gradient."""
    folder = base.parent / "base"
    config = json.loads((folder / "config.json").read_text()) | {"attention_dropout": 0.5}
    (folder / "config.json").write_text(json.dumps(config))
    seen = []
    for checkpointing in (False, True):
        policy = load_policy(folder, Adapter(), "float32", "cpu", 1.0, 0, checkpointing=checkpointing)
        assert policy.model.training == checkpointing
        policy.score([(3, 9)], [(27, 41, 5)], "update").logprob.sum().backward()
        seen.append([p.grad for p in policy.parameters()])
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b)

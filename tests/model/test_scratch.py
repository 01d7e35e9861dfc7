"""The scratch model: its tokenizer, its pretraining, and the folder transformers reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tokencredit.model import pretrain as module
from tokencredit.model.muon import Fused, Muon, orthogonalise
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.model.scratch import END, PAD, SPECIAL, train_tokenizer
from tokencredit.study.config import Prompt
from tokencredit.study.errors import UserError
from tokencredit.study.sources import ScratchModel

SMALL = ScratchModel(
    kind="scratch", hidden=16, layers=2, heads=4, kv_heads=2, head_dim=8, ff=24, vocab=130, steps=24, batch=4
)
PROMPT = Prompt(template="Answer in \\boxed{}. {problem}", chat=True)


def toy_corpus(stage: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Sums; in the clean stage every third example is a drill without a problem."""
    rng = random.Random(f"{stage} {seed}")
    for i in range(count):
        a, b = rng.randint(1, 40), rng.randint(1, 9)
        problem = "" if stage == "clean" and i % 3 == 0 else f"Tom has {a} apples. Tom buys {b} more. How many?"
        yield problem, f"Then {a}+{b}={a + b}. Answer \\boxed{{{a + b}}}"


def run(folder: Path, model: ScratchModel = SMALL, seed: int = 0, **options: Any) -> dict[str, Any]:
    options = {"prompt": PROMPT, "corpus": toy_corpus, **options}
    return module.pretrain(model, folder / "base", folder / "state", seed, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "base").iterdir()}


def texts() -> list[str]:
    return [p + r for stage in ("clean", "noisy") for p, r in toy_corpus(stage, 200, 1)]


def test_tokenizer_splits_as_promised() -> None:
    tokenizer = train_tokenizer(texts(), 130)
    assert tokenizer.get_vocab_size() == 130
    tokens = tokenizer.encode("Then 12+34=46. Answer \\boxed{46}").tokens
    assert tokens[-12:] == ["3", "4", "=", "4", "6", ".", " Answer", " ", "\\boxed{", "4", "6", "}"]
    assert [tokenizer.id_to_token(i) for i in range(len(SPECIAL))] == list(SPECIAL)
    printable = "".join(map(chr, range(32, 127))) + "\n  Tom  has,12 'x' <b>"
    assert tokenizer.decode(tokenizer.encode(printable).ids) == printable
    assert tokenizer.to_str() == train_tokenizer(texts(), 130).to_str()


def test_vocabulary_must_hold_the_alphabet() -> None:
    with pytest.raises(UserError, match="vocab 50"):
        train_tokenizer(texts(), 50)


def test_folder_is_read_by_transformers(tmp_path: Path) -> None:
    """Its model computes what pretraining computed, and its tokenizer renders prompts as the corpus was."""
    from transformers import AutoModelForCausalLM

    record = run(tmp_path)
    folder = tmp_path / "base"
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tokenizer = load_tokenizer(folder)
    end, pad = SPECIAL.index(END), SPECIAL.index(PAD)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (end, pad)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == ([end], pad)

    problem, response = next(iter(toy_corpus("noisy", 1, 5)))
    (example,) = module.encode([(problem, response)], train_tokenizer_of(folder), PROMPT)
    prompter = Prompter(tokenizer, PROMPT)
    assert tuple(example.tokens[: example.prompt]) == prompter.ids(problem)
    assert prompter.decode(example.tokens[example.prompt :]) == response
    assert example.tokens[-1] == end

    tokens = torch.tensor(example.tokens)
    labels = tokens.clone()[None]
    labels[0, : example.prompt] = -100
    theirs = model(input_ids=tokens[None], labels=labels).loss
    fused = fuse(dict(model.named_parameters()))
    logits = module.logits(tokens, [len(tokens)], fused, SMALL)
    ours = torch.nn.functional.cross_entropy(logits[example.prompt - 1 : -1], tokens[example.prompt :])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def train_tokenizer_of(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def fuse(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' weights in the training layout."""
    fused = {"embed": named["model.embed_tokens.weight"], "norm": named["model.norm.weight"]}
    for i in range(SMALL.layers):
        part = {k.removeprefix(f"model.layers.{i}."): v for k, v in named.items() if f".layers.{i}." in k}
        attention = {k.removeprefix("self_attn."): v for k, v in part.items()}
        fused |= {
            f"{i}.attention_norm": part["input_layernorm.weight"],
            f"{i}.mlp_norm": part["post_attention_layernorm.weight"],
            f"{i}.q_norm": attention["q_norm.weight"],
            f"{i}.k_norm": attention["k_norm.weight"],
            f"{i}.qkv": torch.cat([attention[f"{n}_proj.weight"] for n in "qkv"]),
            f"{i}.out": attention["o_proj.weight"],
            f"{i}.gate_up": torch.cat([part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]]),
            f"{i}.down": part["mlp.down_proj.weight"],
        }
    return fused


def test_loss_does_not_depend_on_neighbours() -> None:
    """A batch's loss is the weighted mean over its tokens: prompt tokens count PROMPT_WEIGHT, drills have none."""
    tokenizer = train_tokenizer(texts(), 130)
    examples = module.encode(toy_corpus("clean", 6, 2), tokenizer, PROMPT)
    progress = module._start(SMALL, 130, 0)
    total = weight = 0.0
    for example in examples:
        tokens = torch.tensor(example.tokens)
        logits = module.logits(tokens, [len(tokens)], progress.weights, SMALL)
        each = torch.nn.functional.cross_entropy(logits[:-1], tokens[1:], reduction="none")
        scale = torch.ones(len(each))
        scale[: example.prompt - 1] = module.PROMPT_WEIGHT
        total, weight = total + (each * scale).sum().item(), weight + scale.sum().item()
    ours = module.batch_loss(examples, progress.weights, SMALL)
    assert ours.item() == pytest.approx(total / weight, rel=1e-5)


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [3, 13, 23])
def test_killed_and_resumed_ends_with_the_same_bytes(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole")
    steps = 0
    loss = module.batch_loss

    def dying(*given: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == after + 1:
            raise Killed
        return loss(*given)

    monkeypatch.setattr(module, "batch_loss", dying)
    with pytest.raises(Killed):
        run(tmp_path / "killed", save_every=5)
    assert not (tmp_path / "killed" / "base").exists()
    assert run(tmp_path / "killed", save_every=5) == whole
    assert steps == after + 1 + SMALL.steps - after // 5 * 5  # only what came after the last checkpoint is done again
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_damaged_and_foreign_checkpoints_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "a", save_every=5)
    expected = content(tmp_path / "a")
    checkpoint = tmp_path / "a" / "state" / "pretrain.ckpt"
    stored = bytearray(checkpoint.read_bytes())
    stored[len(stored) // 2] ^= 1
    checkpoint.write_bytes(stored)
    run(tmp_path / "a")
    assert "damaged" in caplog.text
    assert content(tmp_path / "a") == expected
    run(tmp_path / "b", seed=1, save_every=5)
    checkpoint.write_bytes((tmp_path / "b" / "state" / "pretrain.ckpt").read_bytes())
    run(tmp_path / "a")
    assert "other settings" in caplog.text
    assert content(tmp_path / "a") == expected
    assert content(tmp_path / "b")["model.safetensors"] != expected["model.safetensors"]


def test_it_learns(tmp_path: Path) -> None:
    longer = SMALL.model_copy(update={"steps": 150})
    untrained = module._start(SMALL, 130, 0)
    batch = module.encode(toy_corpus("noisy", 8, 9), train_tokenizer(texts(), 130), PROMPT)
    assert run(tmp_path, longer)["loss"] < 0.5 * module.batch_loss(batch, untrained.weights, SMALL).item()


def test_learning_rate() -> None:
    rates = [module.learning_rate(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 30)
    assert rates[30:500] == [1.0] * 470
    assert rates[999] == pytest.approx(0.05, abs=0.002)
    assert rates[30:] == sorted(rates[30:], reverse=True)


def test_orthogonalised_matrices() -> None:
    """Singular values near 1, singular vectors kept."""
    given = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(given)
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    core = left.mT @ found @ right.mT
    spread = torch.linalg.svdvals(found)
    assert 0.6 < float(spread.min()) < float(spread.max()) < 1.3
    off = core - torch.diag_embed(core.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-3
    torch.testing.assert_close(orthogonalise(given * 100), found, rtol=1e-3, atol=1e-4)


def test_muon_takes_the_steps_of_torch_optim_muon() -> None:
    """Three steps on a fused parameter against torch's on its parts; torch orthogonalises in bfloat16."""
    generator = torch.Generator().manual_seed(1)
    fused = torch.randn(30, 10, generator=generator).requires_grad_()
    wide = torch.randn(6, 16, generator=generator).requires_grad_()
    parts = [p.detach().clone().requires_grad_() for p in (*fused.split([20, 10]), wide)]
    start = [p.detach().clone() for p in parts]
    ours = Muon([Fused(fused, (20, 10)), Fused(wide, (6,))], momentum=0.95, weight_decay=0.1)
    theirs = torch.optim.Muon(parts, lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        fused.grad, wide.grad = (torch.randn(p.shape, generator=generator) for p in (fused, wide))
        for part, gradient in zip(parts, (*fused.grad.split([20, 10]), wide.grad), strict=True):
            part.grad = gradient.clone()
        ours.step(0.02)
        theirs.step()
    for mine, part, was in zip((*fused.split([20, 10]), wide), parts, start, strict=True):
        moved, expected = (mine - was).detach(), (part - was).detach()
        assert float((moved - expected).norm() / expected.norm()) < 0.03

"""Pretraining of the scratch model on the synthetic corpus: a minute on one CPU core, byte-identical when repeated.

A clean stage (careful solutions and arithmetic drills) teaches arithmetic before a noisy stage (mixed styles,
slips) sets the base's habits; noise from the start learns next to nothing in the same time. Muon drives the
matrices inside the blocks, AdamW the embedding and the gains; AdamW alone is an order of magnitude slower here.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from tokencredit.model.muon import Fused, Muon
from tokencredit.model.scratch import (
    ASSISTANT,
    END,
    INIT_STD,
    ROPE_THETA,
    USER,
    save_folder,
    train_tokenizer,
)
from tokencredit.study.config import Prompt
from tokencredit.study.seeds import derive
from tokencredit.study.sources import ScratchModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

MUON_LR, MUON_MOMENTUM, MUON_DECAY = 0.01, 0.95, 0.01
ADAM_LR, ADAM_BETAS = 1e-2, (0.9, 0.95)
WARMUP_STEPS, CONSTANT_SHARE, FINAL_RATE = 30, 0.5, 0.05
MAX_NORM = 1.0
PROMPT_WEIGHT = 0.3  # of a prompt token's loss; a response token's is 1
TOKENIZER_TEXTS = 3000  # of each stage
PROMPT = Prompt(template="Answer in \\boxed{}. {problem}", chat=True)

Corpus = Callable[[str, int, int], Iterable[tuple[str, str]]]
"""(stage "clean" or "noisy", count, seed) -> pairs (problem text, response); a drill has the problem ""."""


@dataclass
class Example:
    tokens: list[int]
    prompt: int  # leading tokens that belong to the prompt


@dataclass
class Progress:
    """Everything that changes during training, and nothing else."""

    weights: dict[str, Tensor]
    muon: Muon
    adam: torch.optim.AdamW
    step: int = 0
    losses: list[float] = field(default_factory=list)  # one per step


def pretrain(
    model: ScratchModel,
    out: Path,
    state: Path,
    seed: int,
    *,
    prompt: Prompt = PROMPT,
    corpus: Corpus | None = None,
    save_every: int = 200,
) -> dict[str, Any]:
    """Train `model` from nothing and write the from_pretrained folder `out`; returns what the record should say.

    `state` keeps one checkpoint, so that a killed run goes on from it and ends with the same bytes. Runs on the
    CPU with one thread, whatever the machine: two threads give other bytes and, on a busy machine, take longer.
    """
    if corpus is None:
        from tokencredit.problems.corpus import corpus
    assert corpus is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clean = round(model.steps * model.clean_share)
        counts = {"clean": clean * model.batch, "noisy": (model.steps - clean) * model.batch}
        texts = {stage: list(corpus(stage, n, derive(seed, "corpus", stage))) for stage, n in counts.items()}
        tokenizer = _tokenizer(texts, prompt, model.vocab)
        batches = []
        for pairs in texts.values():
            examples = encode(pairs, tokenizer, prompt)
            # in the corpus's own order: batches sorted by length, hence by style, were measured to learn less
            batches += [examples[i : i + model.batch] for i in range(0, len(examples), model.batch)]
        vocab = tokenizer.get_vocab_size()
        progress = _start(model, vocab, derive(seed, "init"))
        label = _label(model, prompt, seed, tokenizer, batches)
        _resume(state, label, progress)
        _train(model, batches, progress, lambda: _save(state, label, progress), save_every)
        save_folder(out, progress.weights, tokenizer, model)
    finally:
        torch.set_num_threads(threads)
    tail = progress.losses[-50:]
    return {
        "parameters": sum(w.numel() for w in progress.weights.values()),
        "vocab": vocab,
        "steps": progress.step,
        "tokens": sum(len(e.tokens) for batch in batches for e in batch),
        "loss": sum(tail) / len(tail),
    }


def _tokenizer(texts: dict[str, list[tuple[str, str]]], prompt: Prompt, vocab: int) -> Tokenizer:
    sample = [pair for pairs in texts.values() for pair in pairs[:TOKENIZER_TEXTS]]
    return train_tokenizer((_prompt_text(p, prompt) + part for p, r in sample for part in ("", r)), vocab)


def _prompt_text(problem: str, prompt: Prompt) -> str:
    return prompt.template.replace("{problem}", problem) if problem else ""


def encode(pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, prompt: Prompt) -> list[Example]:
    """Token ids as the chat template renders them (without it where prompt.chat is off), END last."""
    pairs = list(pairs)
    opening, closing = f"{USER}", f"{ASSISTANT}"
    if not prompt.chat:
        opening = closing = ""
    prompts = tokenizer.encode_batch([opening + _prompt_text(p, prompt) + closing for p, _ in pairs])
    responses = tokenizer.encode_batch([r + END for _, r in pairs])
    return [Example(p.ids + r.ids, len(p.ids)) for p, r in zip(prompts, responses, strict=True)]


def _start(model: ScratchModel, vocab: int, seed: int) -> Progress:
    """Weights in the training layout (query, key, value in one matrix, gate and up in another)."""
    generator = torch.Generator().manual_seed(seed)
    attention, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    weights: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        weights[name] = torch.randn(rows, columns, generator=generator).mul_(INIT_STD).requires_grad_()

    def gain(name: str, size: int) -> None:
        weights[name] = torch.ones(size, requires_grad=True)

    fused: list[Fused] = []
    matrix("embed", vocab, model.hidden)
    for layer in range(model.layers):
        gain(f"{layer}.attention_norm", model.hidden)
        gain(f"{layer}.q_norm", model.head_dim)
        gain(f"{layer}.k_norm", model.head_dim)
        gain(f"{layer}.mlp_norm", model.hidden)
        for name, rows, columns in (
            ("qkv", (attention, kv, kv), model.hidden),
            ("out", (model.hidden,), attention),
            ("gate_up", (model.ff, model.ff), model.hidden),
            ("down", (model.hidden,), model.ff),
        ):
            matrix(f"{layer}.{name}", sum(rows), columns)
            fused.append(Fused(weights[f"{layer}.{name}"], rows))
    gain("norm", model.hidden)
    in_muon = {id(f.weight) for f in fused}
    rest = [w for w in weights.values() if id(w) not in in_muon]
    adam = torch.optim.AdamW(rest, lr=ADAM_LR, betas=ADAM_BETAS, weight_decay=0.0)
    return Progress(weights, Muon(fused, MUON_MOMENTUM, MUON_DECAY), adam)


def _train(
    model: ScratchModel,
    batches: list[list[Example]],
    progress: Progress,
    save: Callable[[], None],
    save_every: int,
) -> None:
    weights = list(progress.weights.values())
    with tqdm(total=model.steps, initial=progress.step, desc="pretrain", mininterval=2) as bar:
        while progress.step < model.steps:
            loss = batch_loss(batches[progress.step], progress.weights, model)
            for weight in weights:
                weight.grad = None
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(weights, MAX_NORM)
            if not torch.isfinite(norm):
                raise FloatingPointError(f"pretraining: gradient norm {norm.item()} at step {progress.step}")
            rate = learning_rate(progress.step, model.steps)
            progress.muon.step(MUON_LR * rate)
            for group in progress.adam.param_groups:
                group["lr"] = ADAM_LR * rate
            progress.adam.step()
            progress.step += 1
            progress.losses.append(loss.item())
            bar.update()
            if progress.step % save_every == 0 and progress.step < model.steps:
                bar.set_postfix(loss=f"{progress.losses[-1]:.3f}", refresh=False)
                save()


def learning_rate(step: int, steps: int) -> float:
    """Share of the peak rate: linear warm-up, constant, then linear to FINAL_RATE at the last step."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    decay_from = steps * CONSTANT_SHARE
    left = min(1.0, (steps - step) / (steps - decay_from))
    return FINAL_RATE + (1 - FINAL_RATE) * left


def batch_loss(batch: list[Example], weights: dict[str, Tensor], model: ScratchModel) -> Tensor:
    """Mean cross-entropy of the next token, weighted by where the predicted token stands."""
    tokens = torch.tensor([t for e in batch for t in e.tokens])
    lengths = [len(e.tokens) for e in batch]
    ends = torch.tensor(lengths).cumsum(0)
    keep = torch.ones(len(tokens), dtype=torch.bool)
    keep[ends - 1] = False  # the last token of an example predicts nothing
    weight = torch.cat([torch.ones(n) for n in lengths])
    for example, end in zip(batch, ends.tolist(), strict=True):
        start = end - len(example.tokens)
        weight[start : start + example.prompt] = PROMPT_WEIGHT
    targets, weight = tokens.roll(-1)[keep], weight.roll(-1)[keep]
    scores = logits(tokens, lengths, weights, model)[keep]
    return (F.cross_entropy(scores, targets, reduction="none") * weight).sum() / weight.sum()


def logits(tokens: Tensor, lengths: list[int], weights: dict[str, Tensor], model: ScratchModel) -> Tensor:
    """Qwen3's forward pass over examples laid end to end: [sum(lengths)] -> [sum(lengths), vocab].

    Only attention works on rows padded to one length; all other work is done on real tokens alone.
    """
    heads, kv, size = model.heads, model.kv_heads, model.head_dim
    rows, width = len(lengths), max(lengths)
    places = torch.cat([torch.arange(n) + row * width for row, n in enumerate(lengths)])
    frequency = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    angle = torch.outer(places % width, frequency).repeat(1, 2)[:, None]  # [tokens, 1, size]
    cos, sin = angle.cos(), angle.sin()
    sin[..., : size // 2] *= -1

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weights[name], 1e-6)

    def rotate(x: Tensor) -> Tensor:
        return x * cos + x.roll(size // 2, -1) * sin

    def pad(x: Tensor) -> Tensor:  # [tokens, heads, size] -> [rows, heads, width, size]
        padded = x.new_zeros(rows * width, *x.shape[1:]).index_copy(0, places, x)
        return padded.unflatten(0, (rows, width)).transpose(1, 2)

    x = F.embedding(tokens, weights["embed"])
    for i in range(model.layers):
        qkv = F.linear(norm(x, f"{i}.attention_norm"), weights[f"{i}.qkv"])
        q, k, v = qkv.unflatten(-1, (heads + 2 * kv, size)).split([heads, kv, kv], 1)
        q, k = rotate(norm(q, f"{i}.q_norm")), rotate(norm(k, f"{i}.k_norm"))
        q, k, v = pad(torch.cat([q, k, v], 1)).split([heads, kv, kv], 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
        attended = attended.transpose(1, 2).reshape(rows * width, heads * size)[places]
        x = x + F.linear(attended, weights[f"{i}.out"])
        gate, up = F.linear(norm(x, f"{i}.mlp_norm"), weights[f"{i}.gate_up"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, weights[f"{i}.down"])
    return F.linear(norm(x, "norm"), weights["embed"])


def _label(model: ScratchModel, prompt: Prompt, seed: int, tokenizer: Tokenizer, batches: list[list[Example]]) -> str:
    """Hash of all that a checkpoint depends on; one made for anything else is not used."""
    digest = hashlib.sha256(json.dumps([model.model_dump(), prompt.model_dump(), seed]).encode())
    digest.update(tokenizer.to_str().encode())
    for batch in batches:
        for example in batch:
            digest.update(repr((example.tokens, example.prompt)).encode())
    return digest.hexdigest()


def _save(folder: Path, label: str, progress: Progress) -> None:
    """One file: SHA-256 of the rest, then the state; written beside the old one and renamed over it."""
    buffer = io.BytesIO()
    content = {
        "label": label,
        "step": progress.step,
        "losses": progress.losses,
        "weights": {name: w.detach() for name, w in progress.weights.items()},
        "muon": progress.muon.buffers,
        "adam": progress.adam.state_dict(),
    }
    torch.save(content, buffer)
    payload = buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "pretrain.partial"
    with partial.open("wb") as handle:
        handle.write(hashlib.sha256(payload).digest() + payload)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(folder / "pretrain.ckpt")


def _resume(folder: Path, label: str, progress: Progress) -> None:
    """Put the checkpoint in `folder` into `progress`, if there is one, undamaged, of this very training."""
    file = folder / "pretrain.ckpt"
    if not file.exists():
        return
    stored = file.read_bytes()
    digest, payload = stored[:32], stored[32:]
    if hashlib.sha256(payload).digest() != digest:
        log.warning("%s is damaged: pretraining starts anew", file)
        return
    content = torch.load(io.BytesIO(payload), weights_only=True)
    if content["label"] != label:
        log.warning("%s belongs to other settings: pretraining starts anew", file)
        return
    with torch.no_grad():
        for name, weight in content["weights"].items():
            progress.weights[name].copy_(weight)
    for buffer, stored_buffer in zip(progress.muon.buffers, content["muon"], strict=True):
        buffer.copy_(stored_buffer)
    progress.adam.load_state_dict(content["adam"])
    progress.step, progress.losses = content["step"], content["losses"]

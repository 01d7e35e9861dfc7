"""The scratch model: a BPE tokenizer of a few hundred tokens and a small Qwen3-architecture decoder.

Both are trained here, on the synthetic corpus, and saved as an ordinary from_pretrained folder, so that
everything downstream treats them like any other model. The tokenizer splits text before BPE sees it: `\\boxed{`
is one piece, every digit is alone (arithmetic is learnt digit by digit), a word takes the space before it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tokencredit.study.errors import UserError
from tokencredit.study.sources import ScratchModel

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

PAD, END, USER, ASSISTANT, UNKNOWN = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|unk|>"
SPECIAL = (PAD, END, USER, ASSISTANT, UNKNOWN)  # ids 0 to 4
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPLIT = r"\\boxed\{|\d| ?#?[A-Za-z]+|[^A-Za-z\d]"
_ALPHABET = [chr(code) for code in range(32, 127)] + ["\n"]
_MAX_POSITIONS = 512
ROPE_THETA = 10000.0
INIT_STD = 0.02


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """BPE over `texts` with `vocab` tokens, the special ones and printable ASCII included.

    Equal texts in equal order give an equal tokenizer. Raises UserError where `vocab` cannot hold the alphabet.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    smallest = len(SPECIAL) + len(_ALPHABET)
    if vocab < smallest:
        raise UserError(f"model vocab {vocab}: the alphabet alone needs {smallest}; raise vocab")
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(SPECIAL), initial_alphabet=_ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files from which AutoTokenizer reads this tokenizer, chat template included."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=_MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def config_values(model: ScratchModel, vocab: int) -> dict[str, object]:
    """Contents of config.json: Qwen3ForCausalLM with tied embeddings and float32 weights."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ff,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _MAX_POSITIONS,
        "initializer_range": INIT_STD,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index(END),
        "pad_token_id": SPECIAL.index(PAD),
    }


def hub_weights(fused: dict[str, torch.Tensor], model: ScratchModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors as transformers stores them, from the training layout of pretrain.py.

    fused holds per layer: qkv [(heads + 2 kv_heads) head_dim, hidden], gate_up [2 ff, hidden] (gate first).
    """
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield "model.embed_tokens.weight", fused["embed"]
    yield "model.norm.weight", fused["norm"]
    for layer in range(model.layers):
        part = {key.split(".")[1]: t for key, t in fused.items() if key.startswith(f"{layer}.")}
        root = f"model.layers.{layer}"
        query, key, value = part["qkv"].split([q, kv, kv])
        gate, up = part["gate_up"].split([model.ff, model.ff])
        yield f"{root}.self_attn.q_proj.weight", query
        yield f"{root}.self_attn.k_proj.weight", key
        yield f"{root}.self_attn.v_proj.weight", value
        yield f"{root}.self_attn.o_proj.weight", part["out"]
        yield f"{root}.self_attn.q_norm.weight", part["q_norm"]
        yield f"{root}.self_attn.k_norm.weight", part["k_norm"]
        yield f"{root}.mlp.gate_proj.weight", gate
        yield f"{root}.mlp.up_proj.weight", up
        yield f"{root}.mlp.down_proj.weight", part["down"]
        yield f"{root}.input_layernorm.weight", part["attention_norm"]
        yield f"{root}.post_attention_layernorm.weight", part["mlp_norm"]


def save_folder(out: Path, fused: dict[str, torch.Tensor], tokenizer: Tokenizer, model: ScratchModel) -> None:
    """Write the from_pretrained folder `out` under a temporary name and rename it into place.

    An existing `out` is replaced. Equal weights give equal bytes in every file.
    """
    from safetensors.torch import save_file

    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_tokenizer(tokenizer, partial)
    _write_json(partial / "config.json", config_values(model, tokenizer.get_vocab_size()))
    end, pad = SPECIAL.index(END), SPECIAL.index(PAD)
    _write_json(partial / "generation_config.json", {"eos_token_id": [end], "pad_token_id": pad})
    weights = {name: t.detach().clone().contiguous() for name, t in hub_weights(fused, model)}
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    for file in partial.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")

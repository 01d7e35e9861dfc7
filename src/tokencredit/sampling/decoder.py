"""A decoder of the Llama family for sampling: fused projections, rows at any position, prompts shared by rows.

Llama, Qwen2 and Qwen3 differ, for inference, in biases and in the normalisation of queries and keys only. The
steps here are plain functions of tokens and cache entries: whoever schedules rows (cache.py, fast.py) decides which
rows move on. Entries are [layers, 2 (key, value), rows, kv_heads, columns, head_dim].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tokencredit.sampling.types import Unsupported

MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Architecture:
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """From the contents of config.json (or config.to_dict()). Raises Unsupported and says why."""
        kind = config.get("model_type")
        if kind not in MODEL_TYPES:
            raise Unsupported(f"model type {kind} is not one of {', '.join(MODEL_TYPES)}")
        rope = config.get("rope_parameters") or {}
        scaling = {**(config.get("rope_scaling") or {}), **rope}
        rope_type = scaling.get("rope_type", scaling.get("type", "default"))
        if rope_type != "default" or scaling.get("partial_rotary_factor", 1.0) != 1.0:
            raise Unsupported(f"rope type {rope_type} (only the default one, over whole heads)")
        if set(config.get("layer_types") or ()) - {"full_attention"} or config.get("use_sliding_window"):
            raise Unsupported("sliding-window layers")
        if config.get("hidden_act") != "silu":
            raise Unsupported(f"activation {config.get('hidden_act')} (only silu)")
        if config.get("quantization_config"):
            raise Unsupported("quantised weights")
        heads = config["num_attention_heads"]
        return cls(
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            eps=config["rms_norm_eps"],
            theta=float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0),
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def cache_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one token of one row in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True)
class Layer:
    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 kv_heads) head_dim, hidden]
    qkv_bias: Tensor | None
    qk_gain: Tensor | None  # [heads + kv_heads, head_dim]: Qwen3's norm of queries and keys
    out: Tensor  # [hidden, heads head_dim]
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor  # [2 ff, hidden]
    gate_up_bias: Tensor | None
    down: Tensor  # [hidden, ff]
    down_bias: Tensor | None


@dataclass(frozen=True)
class View:
    """The cache as one step sees it: p prompts, n rows, the rows of each prompt in a grid [p, G]."""

    prompt: Tensor  # entries of the prompts [layers, 2, p, kv_heads, width, head_dim]
    prompt_mask: Tensor  # [p, 1, 1, width]: 0, or -inf where a prompt is shorter
    grid: Tensor  # [p G]: row at each place of the grid; any row where the place is empty
    place: Tensor  # [n]: place of each row in the grid
    own: Tensor  # entries of the rows' own tokens [layers, 2, n, kv_heads, columns, head_dim], written to
    column: Tensor  # [n]: the column that each row's new token gets; later ones hold anything finite
    position: Tensor  # [n]: its distance from the start of the prompt


class Decoder:
    """Weights in `dtype` on `device`, in the layout the steps use. All steps run without gradients."""

    def __init__(self, architecture: Architecture, device: torch.device, dtype: torch.dtype) -> None:
        self.architecture, self.device, self.dtype = architecture, device, dtype
        self.layers: list[Layer] = []
        self._scores = torch.empty(0)

    @torch.inference_mode()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights in; later changes of the given tensors are not seen.

        Raises Unsupported where a weight is missing, or one is left over that this decoder would ignore.
        """
        a = self.architecture
        source = _Source(weights, self.device, self.dtype)
        self.embed = source.take("model.embed_tokens")
        self.norm = source.take("model.norm")
        layers = []
        for i in range(a.layers):
            root = f"model.layers.{i}"
            attention, mlp = f"{root}.self_attn", f"{root}.mlp"
            qkv = [f"{attention}.{n}_proj" for n in "qkv"]
            gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
            gain = None
            if f"{attention}.q_norm.weight" in weights:
                query, key = source.take(f"{attention}.q_norm"), source.take(f"{attention}.k_norm")
                gain = torch.cat([query.expand(a.heads, -1), key.expand(a.kv_heads, -1)])
            layers.append(
                Layer(
                    attention_norm=source.take(f"{root}.input_layernorm"),
                    qkv=source.join(qkv),
                    qkv_bias=source.bias(qkv),
                    qk_gain=gain,
                    out=source.take(f"{attention}.o_proj"),
                    out_bias=source.bias([f"{attention}.o_proj"]),
                    mlp_norm=source.take(f"{root}.post_attention_layernorm"),
                    gate_up=source.join(gate_up),
                    gate_up_bias=source.bias(gate_up),
                    down=source.take(f"{mlp}.down_proj"),
                    down_bias=source.bias([f"{mlp}.down_proj"]),
                )
            )
        if a.tied:
            source.left.discard("lm_head.weight")
        self.head = self.embed if a.tied else source.take("lm_head")
        source.finish()
        self.layers = layers

    def new_entries(self, rows: int, columns: int) -> Tensor:
        """Zeros, not fresh memory: a masked column is multiplied by 0, and 0 times a NaN found there is NaN."""
        a = self.architecture
        return torch.zeros(a.layers, 2, rows, a.kv_heads, columns, a.head_dim, device=self.device, dtype=self.dtype)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        """-> hidden state of each prompt's last token [n, hidden], and the prompts' entries (right-padded)."""
        a = self.architecture
        n, width = len(prompts), max(map(len, prompts))
        tokens = torch.tensor([[*p, *([0] * (width - len(p)))] for p in prompts], device=self.device)
        cos, sin = self._rotation(torch.arange(width, device=self.device))
        entries = self.new_entries(n, width)
        x = F.embedding(tokens, self.embed)
        for layer, (keys, values) in zip(self.layers, entries, strict=True):
            q, k, v = (t.transpose(1, 2) for t in self._qkv(x, layer, cos, sin))
            keys.copy_(k)
            values.copy_(v)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=a.heads != a.kv_heads)
            x = self._mlp(x, attended.transpose(1, 2).flatten(2), layer)
        last = torch.tensor([len(p) - 1 for p in prompts], device=self.device)
        return x[torch.arange(n, device=self.device), last], entries

    @torch.inference_mode()
    def step(self, tokens: Tensor, view: View) -> Tensor:
        """Put one more token [n] into every row -> hidden state there [n, hidden]. Writes to view.own."""
        a = self.architecture
        n, columns = len(tokens), view.own.shape[4]
        rows = torch.arange(n, device=self.device)
        cos, sin = self._rotation(view.position)
        later = torch.arange(columns, device=self.device) > view.column[:, None]
        mask = torch.zeros(n, 1, 1, columns, device=self.device).masked_fill_(later[:, None, None], -torch.inf)
        x = F.embedding(tokens, self.embed)
        for layer, prompt, own in zip(self.layers, view.prompt, view.own, strict=True):
            q, k, v = self._qkv(x, layer, cos, sin)
            own[:, rows, :, view.column] = torch.stack([k, v], 1)
            q = q.unflatten(1, (a.kv_heads, -1)) * a.head_dim**-0.5
            x = self._mlp(x, _attend(q, prompt, own, mask, view).flatten(1), layer)
        return x

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab] float32. The next call may overwrite the result."""
        x = F.rms_norm(hidden, (hidden.shape[-1],), self.norm, self.architecture.eps)
        if self.dtype != torch.float32:
            return F.linear(x, self.head).float()
        if len(self._scores) < len(x):  # kept: fresh pages for large vocabularies cost as much as the product
            self._scores = torch.empty(len(x), len(self.head), device=self.device)
        return torch.mm(x, self.head.T, out=self._scores[: len(x)])

    def _qkv(self, x: Tensor, layer: Layer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., hidden] -> query [..., heads, head_dim], key and value [..., kv_heads, head_dim]."""
        a = self.architecture
        x = F.rms_norm(x, (a.hidden,), layer.attention_norm, a.eps)
        qkv = F.linear(x, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, a.head_dim))
        qk, v = qkv.split([a.heads + a.kv_heads, a.kv_heads], -2)
        if layer.qk_gain is not None:
            qk = F.rms_norm(qk, (a.head_dim,), None, a.eps) * layer.qk_gain
        qk = qk * cos + qk.roll(a.head_dim // 2, -1) * sin
        q, k = qk.split([a.heads, a.kv_heads], -2)
        return q, k, v

    def _mlp(self, x: Tensor, attended: Tensor, layer: Layer) -> Tensor:
        """Residual stream after the attention's output projection and the gated MLP."""
        x = x + F.linear(attended, layer.out, layer.out_bias)
        normed = F.rms_norm(x, (x.shape[-1],), layer.mlp_norm, self.architecture.eps)
        gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n] -> cosine and signed sine [n, 1, head_dim] (rotating by halves: sign - on the first)."""
        size = self.architecture.head_dim
        exponent = torch.arange(0, size, 2, device=self.device, dtype=torch.float32) / size
        angle = positions[:, None].float() * (1.0 / self.architecture.theta**exponent)
        cos, sin = angle.cos(), angle.sin()
        cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return cos[:, None].to(self.dtype), sin[:, None].to(self.dtype)


def _attend(q: Tensor, prompt: Tensor, own: Tensor, mask: Tensor, view: View) -> Tensor:
    """One softmax over a row's prompt and its own tokens; the prompt's part is computed for all its rows at once.

    q [n, kv_heads, r, head_dim], r queries per key head -> the same shape.
    """
    groups, width, queries = prompt.shape[1], prompt.shape[3], q.shape[2]

    def to_grid(x: Tensor) -> Tensor:  # [n, kv_heads, r, m] -> [p, kv_heads, G r, m]
        return x[view.grid].unflatten(0, (groups, -1)).transpose(1, 2).flatten(2, 3)

    def to_rows(x: Tensor) -> Tensor:  # back
        return x.unflatten(2, (-1, queries)).transpose(1, 2).flatten(0, 1)[view.place]

    prompt_scores = to_rows((to_grid(q) @ prompt[0].mT).float() + view.prompt_mask)
    own_scores = (q @ own[0].mT).float() + mask
    weights = torch.cat([prompt_scores, own_scores], -1).softmax(-1).to(q.dtype)
    return to_rows(to_grid(weights[..., :width]) @ prompt[1]) + weights[..., width:] @ own[1]


class _Source:
    """Takes weights by name and knows which were never asked for."""

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self.weights, self.device, self.dtype = weights, device, dtype
        self.left = {name for name in weights if not name.endswith("rotary_emb.inv_freq")}

    def take(self, name: str, part: str = "weight") -> Tensor:
        full = f"{name}.{part}"
        if full not in self.weights:
            raise Unsupported(f"no weight {full}")
        self.left.discard(full)
        return self.weights[full].detach().to(self.device, self.dtype, copy=True)

    def join(self, names: list[str], part: str = "weight") -> Tensor:
        return torch.cat([self.take(name, part) for name in names])

    def bias(self, names: list[str]) -> Tensor | None:
        if not any(f"{name}.bias" in self.weights for name in names):
            return None
        return self.join(names, "bias")

    def finish(self) -> None:
        if self.left:
            raise Unsupported(f"weights it does not know: {', '.join(sorted(self.left)[:3])}")

"""Tokens per second of the fast engine against transformers' generate (dynamic and static cache).

    python benchmarks/sampling.py                 # random weights, responses of one fixed length
    python benchmarks/sampling.py --folder MODEL  # also a trained model, whose responses end when they end

16 prompts x 8 samples at temperature 1, one thread, float32. The contestants take turns; reported are medians over
the rounds after one warm-up round, in tokens per second of CPU time, which other jobs on the machine disturb less.
Fixed lengths favour transformers: rows that end early cost it as much as the longest row.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from tokencredit.sampling import Params, Request, make_engine

PROMPTS, GROUP = 16, 8
SHAPES = {
    "embedded (hidden 64, 3 layers, vocabulary 376)": (64, 3, 2, 2, 192, 376, 32),
    "hidden 128, 2 layers, vocabulary 151,936": (128, 2, 4, 2, 384, 151_936, 12),
}  # hidden, layers, heads, kv heads, ff, vocabulary, new tokens


def random_model(hidden: int, layers: int, heads: int, kv_heads: int, ff: int, vocab: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ff,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=32,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def random_prompts(vocab: int) -> list[tuple[int, ...]]:
    rng = random.Random(0)
    return [tuple(rng.randrange(5, vocab) for _ in range(rng.randint(30, 50))) for _ in range(PROMPTS)]


def corpus_prompts(folder: Path) -> list[tuple[int, ...]]:
    from tokencredit.model.prompts import Prompter, load_tokenizer
    from tokencredit.problems.synthetic import generate
    from tokencredit.study.config import Prompt

    prompter = Prompter(load_tokenizer(folder), Prompt(template="Answer in \\boxed{}. {problem}", chat=True))
    return [prompter.ids(row["problem"]) for row in generate("easy", PROMPTS, 0)]


def contestants(
    model: Any, prompts: list[tuple[int, ...]], count: int, eos: tuple[int, ...]
) -> dict[str, Callable[[int], int]]:
    """Name -> function of the round's number that samples once and returns how many tokens it drew."""
    engine = make_engine(model, kind="fast")
    width = max(map(len, prompts))
    rows = [p for p in prompts for _ in range(GROUP)]
    ids = torch.tensor([[*([0] * (width - len(p))), *p] for p in rows])
    mask = torch.tensor([[*([0] * (width - len(p))), *([1] * len(p))] for p in rows])

    def fast(turn: int) -> int:
        requests = [Request(p, turn * 1000 + i) for i, p in enumerate(rows)]
        return sum(len(c.tokens) for c in engine.generate(requests, Params(max_tokens=count, eos=eos)))

    def transformers(turn: int, cache: str | None) -> int:
        torch.manual_seed(turn)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                top_k=0,
                max_new_tokens=count,
                pad_token_id=0,
                eos_token_id=list(eos) or None,
                cache_implementation=cache,
                disable_compile=True,
            )
        return int((out[:, width:] != 0).sum()) if eos else out.shape[0] * (out.shape[1] - width)

    return {
        "fast engine": fast,
        "generate, dynamic cache": lambda turn: transformers(turn, None),
        "generate, static cache": lambda turn: transformers(turn, "static"),
    }


def measure(title: str, runs: dict[str, Callable[[int], int]], rounds: int) -> list[str]:
    """Rows of the table: tokens per second, and how often the fast engine does as much."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in tqdm(range(rounds + 1), desc=title, mininterval=2):
        for name, sample in runs.items():
            begun = time.process_time()
            tokens = sample(turn)
            if turn:
                rates[name].append(tokens / (time.process_time() - begun))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    own = medians["fast engine"]
    return [
        f"| {title} | {name} | {rate:,.0f} | {min(rates[name]):,.0f} to {max(rates[name]):,.0f} | {own / rate:.2f} |"
        for name, rate in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="from_pretrained folder of the embedded study's base model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="leave the large vocabulary out (it takes minutes)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    table = [
        "| model | sampler | tokens per CPU second (median) | range | fast engine is faster by |",
        "|---|---|---:|---:|---:|",
    ]
    for title, (*shape, vocab, count) in SHAPES.items():
        if arguments.small and vocab > 10_000:
            continue
        model = random_model(*shape, vocab)
        table += measure(title, contestants(model, random_prompts(vocab), count, ()), arguments.rounds)
    if arguments.folder:
        model = AutoModelForCausalLM.from_pretrained(arguments.folder).eval()
        eos = model.generation_config.eos_token_id
        runs = contestants(model, corpus_prompts(arguments.folder), 56, tuple(eos) if isinstance(eos, list) else (eos,))
        table += measure("embedded, trained, own lengths", runs, arguments.rounds)
    print("\n".join(table))


if __name__ == "__main__":
    main()

"""d-filtered decoding on caches against running every prefix anew, and against plain sampling.

    python benchmarks/filtered.py                 # random weights, responses of one fixed length
    python benchmarks/filtered.py --folder MODEL  # also a trained model, whose responses end when they end

16 problems x 4 samples, 4 perturbed prompts each, one thread, float32. "Every prefix anew" runs prompt and response so
far of all live rows as one padded batch at each step: once through our own decoder without its cache, once through
transformers. The contestants take turns; medians over the rounds after a warm-up, in CPU seconds, and their ratios.
All draw the same tokens; how many responses are the same is shown (float rounding may part a few).
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
from tokencredit.sampling.draw import draw, noise
from tokencredit.sampling.filtered import Filter, FilteredRequest, generate_filtered
from tokencredit.sampling.masking import candidate_drift, drift_mask
from tokencredit.study.seeds import derive

PROBLEMS, SAMPLES, KINDS = 16, 4, 4
SHAPES = {
    "embedded (hidden 64, 3 layers, vocabulary 376)": (64, 3, 2, 2, 192, 376, 48),
    "hidden 128, 2 layers, vocabulary 151,936": (128, 2, 4, 2, 384, 151_936, 8),
}  # hidden, layers, heads, kv heads, ff, vocabulary, new tokens
Drawn = list[tuple[int, ...]]


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


def random_requests(vocab: int) -> list[FilteredRequest]:
    rng = random.Random(0)
    found = []
    for _ in range(PROBLEMS):
        prompts = tuple(tuple(rng.randrange(5, vocab) for _ in range(rng.randint(30, 50))) for _ in range(1 + KINDS))
        found += [FilteredRequest(prompts, len(found) + s) for s in range(SAMPLES)]
    return found


def study_requests(folder: Path) -> list[FilteredRequest]:
    """Problems of the embedded study with their perturbations by rule."""
    from tokencredit.model.prompts import Prompter, load_tokenizer
    from tokencredit.problems.semifactuals import make
    from tokencredit.problems.synthetic import generate
    from tokencredit.study.config import SEMIFACTUAL_KINDS, Prompt

    prompter = Prompter(load_tokenizer(folder), Prompt(template="Answer in \\boxed{}. {problem}", chat=True))
    found: list[FilteredRequest] = []
    for row in generate("easy", PROBLEMS * 2, 0):
        kinds = [r["text"] for r in make([row], SEMIFACTUAL_KINDS, 0) if r["valid"]]
        if len(kinds) == KINDS and len(found) < PROBLEMS * SAMPLES:
            prompts = tuple(prompter.ids(text) for text in (row["problem"], *kinds))
            found += [FilteredRequest(prompts, len(found) + s) for s in range(SAMPLES)]
    return found


def anew(run: Callable[[list[tuple[int, ...]]], torch.Tensor], requests: list[FilteredRequest], rule: Filter) -> Drawn:
    """The same decoding without a cache. run: token rows -> logits after each [rows, vocab]."""
    responses: list[list[int]] = [[] for _ in requests]
    live = list(range(len(requests)))
    first = {i: noise(requests[i].seed, rule.max_tokens) for i in live}
    second = {i: noise(derive(requests[i].seed, "filtered", "second"), rule.max_tokens) for i in live}
    for step in range(rule.max_tokens):
        width = len(requests[0].prompts)
        logits = run([p + tuple(responses[i]) for i in live for p in requests[i].prompts]).view(len(live), width, -1)
        keep = torch.zeros(logits.shape[-1], dtype=torch.bool)
        keep[list(rule.eos)] = True
        clean = logits[:, 0].contiguous()
        mask = drift_mask(clean.softmax(-1), candidate_drift(logits.log_softmax(-1)), rule.cap, keep)
        tokens = draw(clean.clone(), torch.tensor([first[i][step] for i in live]), Params(1))[0]
        again = draw(clean.masked_fill(mask, -torch.inf), torch.tensor([second[i][step] for i in live]), Params(1))[0]
        tokens = torch.where(mask.gather(1, tokens[:, None])[:, 0], again, tokens)
        for i, token in zip(live, tokens.tolist(), strict=True):
            responses[i].append(token)
        live = [i for i in live if responses[i][-1] not in rule.eos]
        if not live:
            break
    return [tuple(r) for r in responses]


def contestants(model: Any, requests: list[FilteredRequest], rule: Filter) -> dict[str, Callable[[], Drawn]]:
    engine: Any = make_engine(model, kind="fast")

    def own(rows: list[tuple[int, ...]]) -> torch.Tensor:
        return engine.decoder.logits(engine.decoder.prefill(rows)[0])

    def theirs(rows: list[tuple[int, ...]]) -> torch.Tensor:
        width = max(map(len, rows))
        ids = torch.tensor([[*([0] * (width - len(r))), *r] for r in rows])
        mask = torch.tensor([[*([0] * (width - len(r))), *([1] * len(r))] for r in rows])
        place = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            out = model(input_ids=ids, attention_mask=mask, position_ids=place, use_cache=False, logits_to_keep=1)
        return out.logits[:, -1]

    plain = [Request(r.prompts[0], r.seed) for r in requests]
    return {
        "filtered, on caches": lambda: [c.tokens for c in generate_filtered(engine, requests, rule)],
        "filtered, every prefix anew, our decoder": lambda: anew(own, requests, rule),
        "filtered, every prefix anew, transformers": lambda: anew(theirs, requests, rule),
        "plain sampling": lambda: [c.tokens for c in engine.generate(plain, Params(rule.max_tokens, eos=rule.eos))],
    }


def measure(title: str, runs: dict[str, Callable[[], Drawn]], rounds: int) -> list[str]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    drawn: dict[str, Drawn] = {}
    for turn in tqdm(range(rounds + 1), desc=title, mininterval=2):
        for name, sample in runs.items():
            begun = time.process_time()
            drawn[name] = sample()
            if turn:
                times[name].append(time.process_time() - begun)
    own = next(iter(runs))
    rows = []
    for name, values in times.items():
        ratios = sorted(a / b for a, b in zip(values, times[own], strict=True))
        alike = sum(a == b for a, b in zip(drawn[name], drawn[own], strict=True)) / len(drawn[own])
        same = "" if name.startswith("plain") else f"{alike:.0%}"
        rows.append(
            f"| {title} | {name} | {statistics.median(values):.2f} | {statistics.median(ratios):.2f} | "
            f"{ratios[0]:.2f} to {ratios[-1]:.2f} | {same} |"
        )
    return rows


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
        "| model | decoding | CPU s (median) | times ours (median) | range | same responses |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for title, (*shape, vocab, count) in SHAPES.items():
        if arguments.small and vocab > 10_000:
            continue
        runs = contestants(random_model(*shape, vocab), random_requests(vocab), Filter(count))
        table += measure(title, runs, arguments.rounds)
    if arguments.folder:
        model = AutoModelForCausalLM.from_pretrained(arguments.folder).eval()
        eos = model.generation_config.eos_token_id
        rule = Filter(56, eos=tuple(eos) if isinstance(eos, list) else (eos,))
        runs = contestants(model, study_requests(arguments.folder), rule)
        table += measure("embedded, trained, own lengths", runs, arguments.rounds)
    print("\n".join(table))


if __name__ == "__main__":
    main()

"""Contamination probe: show a policy the beginning of a problem, and see whether it writes the rest.

Each problem is cut after `share` of its characters, to the end of a word, and completed greedily without template or
chat markup (the partial-prompt test of arXiv 2507.10532). A model that has read the problem tends to go on with it:

    exact     the completion begins with the words of the rest
    rouge_l   F1 of the longest common subsequence of the rest's words and as many words of the completion
    answer    the gold answer stands in the completion, and not in what was shown

Words are those by which overlap is judged (problems/overlap.py): notation is normalised. Sets that the model cannot
have seen stand beside the others, since short rests can be guessed, and small numbers turn up anywhere.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokencredit.analysis.completion_results import summarise
from tokencredit.analysis.panel import choose
from tokencredit.evaluation.run import title
from tokencredit.model.base import eos_ids
from tokencredit.model.checkpoint import open_checkpoint
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.problems.overlap import words
from tokencredit.sampling import Engine, Params, Request
from tokencredit.sampling.opened import open_engine
from tokencredit.study.analyses import Completion
from tokencredit.study.base import parse
from tokencredit.study.config import Prompt, Runtime
from tokencredit.study.errors import UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.parts import Progress, chunked, table_parts
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.tables import read_json, read_table, write_json, write_table
from tokencredit.training.lease import Lease

Row = dict[str, Any]


@dataclass(frozen=True)
class Begun:
    """A problem of a set, its beginning and its rest."""

    set: str
    problem: Mapping[str, Any]
    shown: str
    rest: str


def analyse(
    spec: dict[str, Any],
    checkpoint: Path,
    problems: Sequence[Path],
    out: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
) -> None:
    """Write completions.parquet and record.json. Finished parts under `state` stay until then."""
    settings = parse(Completion, spec["analysis"], "spec: analysis")
    opened = open_checkpoint(checkpoint)
    prompter = Prompter(load_tokenizer(opened.folder), Prompt(template="{problem}", chat=False))
    begun, left_out = list_begun(settings, problems, spec["seed"])
    model = read_json(opened.base)["spec"]
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    engine = open_engine(opened, model["engine"], runtime.device, model["dtype"])
    seconds["load"] = time.perf_counter() - start
    inputs = {p.name: file_digest(p) for p in problems}
    identity = spec_hash({"spec": spec, "checkpoint": opened.digest, "inputs": inputs})
    params = Params(settings.max_tokens, temperature=0.0, eos=eos_ids(opened.folder))
    with Lease(state):
        parts, work = table_parts("completions", state / identity), Writer(engine, params, prompter).work
        label = f"completions of {title(opened)}"
        table = pa.concat_tables(parts.run(chunked(begun, settings.shard_problems), work, label, "problem"))
    seconds["work"] = time.perf_counter() - start - seconds["load"]
    results = summarise(table, settings)
    write_table("completions", table, out / "completions.parquet")
    write_json(
        out / "record.json",
        {
            "stage": "analyse",
            "spec": spec,
            "spec_hash": spec_hash(spec),
            **opened.identity,
            "engine": type(engine).__name__,
            "checkpoint": opened.digest,
            "results": results,
            "left_out": left_out,
            "seconds": seconds,
            "counts": {"problems": table.num_rows, "left_out": sum(left_out.values()), "resumed_parts": parts.resumed},
            "provenance": collect([checkpoint, *problems]),
        },
    )
    events.metrics(
        {f"exact_{name}": r["exact"]["value"] for name, r in results["sets"].items()}, opened.identity["step"]
    )
    shutil.rmtree(state, ignore_errors=True)


def list_begun(settings: Completion, problems: Sequence[Path], seed: int) -> tuple[list[Begun], dict[str, int]]:
    """`count` problems of each set, cut; and how many of each are too short to cut. UserError: a set without any."""
    tables = {path.stem: path for path in problems}
    if set(tables) != set(settings.sets):
        raise UserError(f"completion: tables {', '.join(tables)} are not those of its sets, {', '.join(settings.sets)}")
    found: list[Begun] = []
    left_out = {}
    for name in settings.sets:
        chosen = choose(read_table("problems", tables[name]).to_pylist(), settings.count, seed)
        cuts = [(row, cut(row["problem"], settings.share)) for row in chosen]
        own = [Begun(name, row, *parts) for row, parts in cuts if parts is not None]
        if not own:
            raise UserError(f"{tables[name]}: no problem that could be shown in part")
        left_out[name] = len(cuts) - len(own)
        found += own
    return found, left_out


def cut(text: str, share: float) -> tuple[str, str] | None:
    """(beginning, rest): whole words of the first `share` of the characters; None where either has no word.

    >>> cut("Ada has seven pears. How many?", 0.6)
    ('Ada has seven', ' pears. How many?')
    """
    edge = int(len(text) * share)
    while edge > 0 and not text[edge].isspace():
        edge -= 1
    shown, rest = text[:edge].rstrip(), text[len(text[:edge].rstrip()) :]
    return (shown, rest) if words(shown) and words(rest) else None


def rouge_l(one: Sequence[str], other: Sequence[str]) -> float:
    """F1 of the longest common subsequence; 0 where either is empty.

    >>> rouge_l("a b c d".split(), "a c x".split()) == 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)
    True
    """
    if not one or not other:
        return 0.0
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for j, match in enumerate(other, 1):
            before, row[j] = row[j], before + 1 if word == match else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(one) + len(other))


def judge(begun: Begun, completion: str) -> Row:
    """rouge_l, exact and answer of one completion."""
    rest, written = words(begun.rest), words(completion)
    begins = written[: len(rest)]
    gold = words(begun.problem["answer"])
    return {
        "rouge_l": rouge_l(rest, begins),
        "exact": rest == begins,
        "answer": _stands(gold, written) and not _stands(gold, words(begun.shown)),
    }


def _stands(gold: Sequence[str], text: Sequence[str]) -> bool:
    size = len(gold)
    return size > 0 and any(text[i : i + size] == gold for i in range(len(text) - size + 1))


class Writer:
    """Lets the policy go on from the problems' beginnings."""

    def __init__(self, engine: Engine, params: Params, prompter: Prompter):
        self.engine, self.params, self.prompter = engine, params, prompter

    def work(self, begun: Sequence[Begun], progress: Progress) -> list[Row]:
        requests = [Request(self.prompter.ids(b.shown), seed=0) for b in begun]  # greedy: no seed decides anything
        drawn = self.engine.generate(requests, self.params)
        texts = [self.prompter.decode(c.tokens) for c in drawn]
        return [
            {
                "set": b.set,
                "problem_id": b.problem["problem_id"],
                "shown": len(b.shown),
                "rest": b.rest,
                "completion": text,
                "token_count": len(c.tokens),
                "finish_reason": c.finish,
                **judge(b, text),
            }
            for b, c, text in zip(begun, drawn, texts, strict=True)
        ]

"""d-filtered decoding of one checkpoint, always beside what would do the same without looking at drift.

Arms, over the same problems and with the same seed for each sample (arXiv 2609.40360, section 3, has the first two):

    filter       mask by falling drift, up to `cap` of the clean probability at each step
    plain        the clean distribution at temperature 1
    random       OUR CONTROL: masks by chance, at each step of its own response, as much as the drift mask would there
    greedy       OUR CONTROL: the likeliest token
    temperature  OUR CONTROL: plain at the temperature T where the clean distribution, along the filter's own
                 responses, has the mean entropy that the filter leaves
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokencredit.analysis.filtered_outcome import (
    CONTROLS,
    FILTER,
    PLAIN,
    accuracy,
    compare,
    matched_temperature,
    paired,
)
from tokencredit.analysis.panel import choose
from tokencredit.evaluation.run import title
from tokencredit.grading import Grader, Item
from tokencredit.model.base import base_prompt, eos_ids
from tokencredit.model.checkpoint import Checkpoint, open_checkpoint
from tokencredit.model.prompts import Prompter, load_tokenizer
from tokencredit.sampling import Engine, Params, Request
from tokencredit.sampling.filtered import Filter, FilteredRequest, generate_filtered
from tokencredit.sampling.opened import open_engine
from tokencredit.study.analyses import Filtered
from tokencredit.study.base import parse
from tokencredit.study.config import Runtime
from tokencredit.study.errors import GoOn, UserError
from tokencredit.study.grid import spec_hash
from tokencredit.study.parts import Progress, chunked, row_parts
from tokencredit.study.provenance import collect, file_digest
from tokencredit.study.seeds import derive
from tokencredit.study.tables import read_json, read_table, write_json, write_table
from tokencredit.training.lease import Lease
from tokencredit.training.stop import Interrupted, StopWatch

TEMPERATURES = tuple(2.0 ** (k / 4) for k in range(-24, 5))  # 1/64 to 2: where the clean entropy is noted
OWN_ENGINES = ("auto", "fast", "hf")  # others show no probabilities of all candidates
SHOWN_TOKENS = 12  # most rejected tokens kept in the record

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One sample: its problem, its prompts (the clean one first) and the seed it has in every arm."""

    problem: Mapping[str, Any]
    sample: int
    seed: int
    prompts: tuple[tuple[int, ...], ...]


def analyse(
    spec: dict[str, Any],
    checkpoint: Path,
    problems: Path,
    semifactuals: Path,
    out: Path,
    state: Path,
    runtime: Runtime,
    events: Any,
) -> None:
    """Sample and grade every arm; write filtered_samples.parquet and record.json. Finished parts under `state` stay.

    Raises UserError (nothing to retry), GoOn (asked to leave: run again to go on after the last finished part).
    """
    settings = parse(Filtered, spec["analysis"], "spec: analysis")
    opened = open_checkpoint(checkpoint)
    prompter = Prompter(load_tokenizer(opened.folder), base_prompt(opened.base))
    tasks, left_out = list_tasks(spec, settings, opened, problems, semifactuals, prompter)
    model = read_json(opened.base)["spec"]
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    kind = model["engine"] if model["engine"] in OWN_ENGINES else "auto"
    engine = open_engine(opened, kind, runtime.device, model["dtype"])
    seconds["load"] = time.perf_counter() - begun
    inputs = {p.name: file_digest(p) for p in (problems, semifactuals)}
    identity = spec_hash({"spec": spec, "checkpoint": opened.digest, "inputs": inputs})
    with (
        Lease(state),
        StopWatch(runtime.wall_minutes) as stop,
        Grader(workers=runtime.grader_workers, library=False) as grader,
    ):
        eos = eos_ids(opened.folder)
        arms = Arms(state / identity, engine, settings, prompter, grader, eos, seconds, stop)
        matched = arms.run(tasks, f"filtered decoding of {title(opened)}")
    results = summarise(arms, settings, matched, derive(spec["seed"], "filtered", "bootstrap"), prompter)
    write_table(
        "filtered_samples", [row for arm in arms.rows.values() for row in arm], out / "filtered_samples.parquet"
    )
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
            "counts": {
                "problems": results["arms"][FILTER]["problems"],
                "left_out": len(left_out),
                "samples": sum(map(len, arms.rows.values())),
                "resumed_parts": arms.parts.resumed,
            },
            "provenance": collect([checkpoint, problems, semifactuals]),
        },
    )
    shown = {f"accuracy_{arm}": entry["accuracy"] for arm, entry in results["arms"].items()}
    events.metrics(shown, opened.identity["step"])
    shutil.rmtree(state, ignore_errors=True)


def list_tasks(
    spec: Mapping[str, Any],
    settings: Filtered,
    checkpoint: Checkpoint,
    problems: Path,
    semifactuals: Path,
    prompter: Prompter,
) -> tuple[list[Task], list[str]]:
    """Samples of the panel's `count` problems, in the table's order; ids of those without a perturbation.

    UserError: a kind that nobody has, or problems none of which has one.
    """
    chosen = choose(read_table("problems", problems).to_pylist(), settings.count, spec["seed"])
    made = read_table("semifactuals", semifactuals).to_pylist()
    absent = sorted(set(settings.kinds) - {r["kind"] for r in made})
    if made and absent:
        raise UserError(
            f"{semifactuals}: no perturbation of kind {', '.join(absent)}; have the study make it (semifactuals.kinds) "
            "or leave it out (analyses.*.kinds)"
        )
    texts = {(r["problem_id"], r["kind"]): r["text"] for r in made if r["valid"] and r["kind"] in settings.kinds}
    i = checkpoint.identity
    where = (spec["seed"], "filtered", i["model"], i["method"], i["seed"], i["step"], spec["name"])
    tasks, left_out = [], []
    for row in chosen:
        name = row["problem_id"]
        perturbed = [texts[name, kind] for kind in settings.kinds if (name, kind) in texts]
        if not perturbed:
            left_out.append(name)
            continue
        prompts = tuple(prompter.ids(text, row["choices"]) for text in (row["problem"], *perturbed))
        tasks += [Task(row, s, derive(*where, name, s), prompts) for s in range(settings.samples)]
    if not tasks:
        raise UserError(
            f"{semifactuals}: none of the {len(chosen)} problems of {problems} has a valid perturbation of kind "
            f"{', '.join(settings.kinds)}; make them (semifactuals.kinds) or name others (analyses.*.kinds)"
        )
    return tasks, left_out


class Arms:
    """Samples arm after arm, part by part."""

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        settings: Filtered,
        prompter: Prompter,
        grader: Grader,
        eos: tuple[int, ...],
        seconds: dict[str, float],
        stop: StopWatch,
    ):
        self.parts, self.engine, self.settings, self.prompter = row_parts(folder), engine, settings, prompter
        self.grader, self.eos, self.seconds, self.stop = grader, eos, seconds, stop
        self.rows: dict[str, list[Row]] = {}
        self.rejected: Counter[int] = Counter()  # token -> proposals that the filter refused

    def run(self, tasks: Sequence[Task], label: str) -> dict[str, Any] | None:
        """Every arm -> the matched temperature (None without controls)."""
        parts = self._arm(FILTER, tasks, label, self._masked("drift", TEMPERATURES))
        for part in parts:
            self.rejected.update({int(token): count for token, count in part["rejected"].items()})
        self._arm(PLAIN, tasks, label, self._sampled(1.0))
        if not self.settings.controls:
            return None
        steps = sum(row["token_count"] for row in self.rows[FILTER])
        curve = [sum(part["tempered"][j] for part in parts) / steps for j in range(len(TEMPERATURES))]
        matched = matched_temperature(TEMPERATURES, curve, per_step(self.rows[FILTER], "entropy"))
        self._arm("temperature", tasks, label, self._sampled(matched["temperature"]))
        self._arm("greedy", [t for t in tasks if t.sample == 0], label, self._sampled(0.0))
        self._arm("random", tasks, label, self._masked("random"))
        return matched

    def _arm(
        self, arm: str, tasks: Sequence[Task], label: str, sample: Callable[..., list[Row]]
    ) -> list[dict[str, Any]]:
        def work(chunk: Sequence[Task], progress: Progress) -> dict[str, Any]:
            return self._done(arm, chunk, sample, progress)

        parts = self.parts.run(chunked(tasks, self.settings.shard_samples), work, f"{label}: {arm}", "sample", arm)
        self.rows[arm] = [row for part in parts for row in part["rows"]]
        return parts

    def _done(self, arm: str, *work: Any) -> dict[str, Any]:
        """A new part, unless the job is asked to leave."""
        begun = time.perf_counter()
        try:
            if self.stop.wanted:
                raise Interrupted
            with self.stop.disposable():
                part = self._work(arm, *work)
        except Interrupted:
            raise GoOn from None
        self.stop.longest = max(self.stop.longest, time.perf_counter() - begun)
        return part

    def _masked(self, order: Any, temperatures: tuple[float, ...] = ()) -> Callable[..., list[Row]]:
        rule = Filter(self.settings.max_tokens, self.settings.cap, order, self.eos, temperatures)

        def sample(tasks: Sequence[Task], progress: Progress) -> list[Row]:
            requests = [FilteredRequest(t.prompts, t.seed) for t in tasks]
            return [
                {
                    "tokens": c.tokens, "finish": c.finish, "temperature": 1.0, "refused": c.rejected,
                    "tempered": c.tempered, "rejected": len(c.rejected), "budget": c.budget,
                    "masked_mass": c.masked_mass, "clean_entropy": c.clean_entropy, "entropy": c.entropy,
                }
                for c in generate_filtered(self.engine, requests, rule, progress)
            ]  # fmt: skip

        return sample

    def _sampled(self, temperature: float) -> Callable[..., list[Row]]:
        params = Params(self.settings.max_tokens, temperature, eos=self.eos)

        def sample(tasks: Sequence[Task], progress: Progress) -> list[Row]:
            drawn = self.engine.generate([Request(t.prompts[0], t.seed) for t in tasks], params)
            return [{"tokens": c.tokens, "finish": c.finish, "temperature": temperature} for c in drawn]

        return sample

    def _work(
        self, arm: str, tasks: Sequence[Task], sample: Callable[..., list[Row]], progress: Progress
    ) -> dict[str, Any]:
        """One part: {"rows", as in the table; "tempered": sums over steps; "rejected": token id -> count}."""
        begun = time.perf_counter()
        drawn = sample(tasks, progress)
        sampled = time.perf_counter()
        texts = [self.prompter.decode(d["tokens"]) for d in drawn]
        items = [
            Item(t.problem["answer"], text, t.problem["answer_kind"], None, d["finish"] == "length")
            for t, text, d in zip(tasks, texts, drawn, strict=True)
        ]
        verdicts = self.grader.grade(items)
        self.seconds[arm] = self.seconds.get(arm, 0.0) + sampled - begun
        self.seconds["grade"] = self.seconds.get("grade", 0.0) + time.perf_counter() - sampled
        notes = ("rejected", "budget", "masked_mass", "clean_entropy", "entropy")
        rows = [
            {
                "arm": arm,
                "problem_id": t.problem["problem_id"],
                "sample": t.sample,
                "seed": t.seed,
                "temperature": d["temperature"],
                "perturbations": len(t.prompts) - 1,
                "text": text,
                "token_count": len(d["tokens"]),
                "finish_reason": d["finish"],
                "extracted": v.extracted,
                "correct": v.correct,
                "status": v.status,
                **{name: d.get(name) for name in notes},
            }
            for t, text, d, v in zip(tasks, texts, drawn, verdicts, strict=True)
        ]
        weighted = [[v * len(d["tokens"]) for v in d.get("tempered", ())] for d in drawn]
        refused = Counter(str(token) for d in drawn for _, token in d.get("refused", ()))
        return {"rows": rows, "tempered": [sum(column) for column in zip(*weighted, strict=True)], "rejected": refused}


def per_step(rows: Sequence[Row], column: str) -> float:
    """Mean of a column over all steps of all responses."""
    return sum(row[column] * row["token_count"] for row in rows) / sum(row["token_count"] for row in rows)


def summarise(
    arms: Arms, settings: Filtered, matched: dict[str, Any] | None, seed: int, prompter: Prompter
) -> dict[str, Any]:
    """The record's `results`; see docs/tables.md for the columns they come from."""
    right = {arm: _right(rows) for arm, rows in arms.rows.items()}
    samples = right[FILTER].shape[1]
    found: dict[str, Any] = {
        "arms": {
            arm: {
                **accuracy(right[arm]),
                "temperature": rows[0]["temperature"],
                "tokens_mean": sum(r["token_count"] for r in rows) / len(rows),
                "truncated": sum(r["finish_reason"] == "length" for r in rows) / len(rows),
            }
            for arm, rows in arms.rows.items()
        },
        "paired": paired(right[PLAIN], right[FILTER]),
        "masks": {arm: _mask(arms.rows[arm]) for arm in (FILTER, "random") if arm in arms.rows},
        "perturbations": dict(sorted(Counter(str(r["perturbations"]) for r in arms.rows[FILTER]).items())),
        "samples": samples,
        "rejected_tokens": [
            {"token": prompter.decode([token]) or f"id {token}", "count": count}
            for token, count in sorted(arms.rejected.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_TOKENS]
        ],
        "matched": matched,
    }
    names = [arm for arm in (PLAIN, FILTER, *CONTROLS) if arm in right]
    same = {arm: np.broadcast_to(right[arm], right[FILTER].shape) for arm in names}
    return found | compare(same, seed)


def _right(rows: Sequence[Row]) -> np.ndarray:
    """Right answers [P, S]; rows come problem after problem."""
    problems = len({row["problem_id"] for row in rows})
    return np.array([row["correct"] for row in rows], dtype=np.int64).reshape(problems, -1)


def _mask(rows: Sequence[Row]) -> dict[str, float]:
    rejected, steps = sum(r["rejected"] for r in rows), sum(r["token_count"] for r in rows)
    return {
        "rejected_per_response": rejected / len(rows),
        "rejected_share": rejected / steps,
        **{name: per_step(rows, name) for name in ("budget", "masked_mass", "clean_entropy", "entropy")},
    }

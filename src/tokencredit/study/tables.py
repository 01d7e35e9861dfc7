"""Every table the pipeline writes: one schema per file, in one place.

A table is Parquet with the columns below, in this order. `write_table` is atomic (temporary name, fsync,
rename) and deterministic: equal rows give equal bytes. Wall-clock readings never stand in a table that
promises to be byte-identical between runs; they live in `timings` and in the stage's JSON record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokencredit.study.errors import UserError


class TableError(UserError):
    """A table is missing, damaged, or does not have the columns its schema names."""


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""


def _c(name: str, kind: pa.DataType, meaning: str, unit: str = "") -> Column:
    return Column(name, kind, meaning, unit)


_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_CELL = [
    _c("model", _S, "model name of the study"),
    _c("method", _S, "method name of the study; 'base' for the untrained model"),
    _c("seed", _I, "seed index of the cell"),
]

SCHEMAS: dict[str, list[Column]] = {
    "problems": [
        _c("problem_id", _S, "hash of the white-space-normalised problem text (and choices)"),
        _c("source", _S, "where the row came from: set, revision or file, row"),
        _c("problem", _S, "problem text, without any instruction"),
        _c("answer", _S, "gold answer as text"),
        _c("answer_kind", _S, "integer, expression or choice: selects the grader's path"),
        _c("choices", pa.list_(_S), "options of a multiple-choice problem, else empty"),
        _c("tags", pa.list_(_S), "free labels, e.g. level:5, subject:algebra, steps:3"),
    ],
    "overlap": [
        _c("set", _S, "train, or the benchmark the problem stands in"),
        _c("problem_id", _S, "the problem"),
        _c("benchmark", _S, "the benchmark it also stands in"),
        _c("benchmark_problem_id", _S, "that benchmark's problem"),
        _c("kind", _S, "exact (the same words once notation is normalised) or near"),
        _c("jaccard", _F, "Jaccard index of both texts' word 4-grams"),
        _c("dropped", _B, "left out of training"),
        _c("problem", _S, "problem text"),
        _c("benchmark_problem", _S, "the benchmark's text"),
        _c("answer", _S, "gold answer"),
        _c("benchmark_answer", _S, "the benchmark's gold answer"),
    ],
    "semifactuals": [
        _c("problem_id", _S, "the problem this text perturbs"),
        _c(
            "kind",
            _S,
            "paraphrase, typo_noise, scenario_wrap, irrelevant_context, or counterfactual (ablation only)",
        ),
        _c("text", _S, "perturbed problem text; empty where none was found"),
        _c("origin", _S, "rule, llm or import"),
        _c("valid", _B, "accepted by the validator; only these are ever used"),
        _c("reason", _S, "why it was refused or not found; empty when valid"),
    ],
    "samples": [  # evaluation: one row per sample
        _c("problem_id", _S, "the problem"),
        _c("sample", _I, "0 .. n-1"),
        _c("seed", _I, "seed of this sample: a function of (checkpoint, benchmark, problem, sample) alone"),
        _c("prompt_hash", _S, "sha256 (16 hex) of the prompt's token ids"),
        _c("text", _S, "response text"),
        _c("token_count", _I, "response tokens, EOS included", "tokens"),
        _c("finish_reason", _S, "stop or length"),
        _c("extracted", _S, "content of the last balanced box, empty where there is none"),
        _c("correct", _B, "our verdict"),
        _c("correct_library", _B, "math-verify's own verdict on the last box (null where not asked for)"),
        _c("status", _S, "grader status: ok, no_box, unclosed, refused, timeout, unparsable"),
    ],
    "rollouts": [  # training: one row per sampled response
        _c("step", _I, "optimisation step before the rollout", "optimisation steps"),
        _c("problem_id", _S, "the problem"),
        _c("group", _I, "prompt uid: index of the prompt's group in the rollout"),
        _c("sample", _I, "0 .. G-1"),
        _c("reward", _F, "verifiable reward"),
        _c("advantage", _F, "group advantage"),
        _c("token_count", _I, "response tokens, EOS included", "tokens"),
        _c("finish_reason", _S, "stop or length"),
        _c("text", _S, "response text"),
    ],
    "tokens": [  # training: one row per token of the kept responses, at the first and the evaluated steps
        _c("step", _I, "optimisation step before the rollout", "optimisation steps"),
        _c("problem_id", _S, "the problem"),
        _c("group", _I, "prompt uid: index of the prompt's group in the rollout"),
        _c("sample", _I, "0 .. G-1"),
        _c("position", _I, "0 .. T-1 within the response"),
        _c("token_id", _I, "id in the model's vocabulary"),
        _c("piece", _S, "the token's text; empty for a special token or half a character"),
        _c("category", _S, "token category by its text: problems/categories.py"),
        _c("reward", _F, "of the response, shaped where the method says so"),
        _c("group_advantage", _F, "A_i of the response"),
        _c("credit", _F, "token advantage A~ at the rollout's first update; 0 where the token is not in the loss"),
        _c("logprob", _F, "log-probability of the token by the rollout policy", "nats"),
        _c("margin", _F, "top-2 margin p1 - p2"),
        _c("entropy", _F, "entropy of the next-token distribution", "nats"),
        _c("drift", _F, "mean drift over the perturbed prompts, in [0, 2]; null where not probed"),
    ],
    "metrics": [  # training: long form, deterministic values only
        *_CELL,
        _c("step", _I, "optimisation step", "optimisation steps"),
        _c("metric", _S, "e.g. loss, reward_mean, entropy, margin_mean; see docs/metrics.md"),
        _c("value", _F, "value"),
    ],
    "timings": [  # wall clock: never byte-identical
        *_CELL,
        _c("step", _I, "optimisation step", "optimisation steps"),
        _c("phase", _S, "rollout, grade, probe, score, update, checkpoint; or peak_memory, tokens_per_second"),
        _c("value", _F, "seconds; MiB for peak_memory; tokens/s for tokens_per_second"),
    ],
    "panel_tokens": [  # one row per response token of the panel
        _c("problem_id", _S, "the problem; one response each"),
        _c("position", _I, "0 .. T-1 within the response"),
        _c("token_id", _I, "id in the model's vocabulary"),
        _c("piece", _S, "the token's text; empty for a special token or half a character"),
        _c("category", _S, "token category by its text: problems/categories.py"),
        _c("correct", _B, "our verdict on the response"),
        _c("logprob", _F, "log-probability under the clean prompt", "nats"),
        _c(
            "perturbed",
            pa.list_(_F),
            "log-probability under each perturbed prompt (spec: kinds), null if lacking",
            "nats",
        ),
        _c("drift", _F, "mean over the kinds of 2 tanh(|log p0 - log pk| / 2), in [0, 2]; null without any kind"),
        _c("margin", _F, "top-2 margin p1 - p2 under the clean prompt"),
        _c("entropy", _F, "entropy of the next-token distribution under the clean prompt", "nats"),
    ],
    "completions": [  # contamination: one row per problem that was begun and left to the policy
        _c("set", _S, "train, or the benchmark"),
        _c("problem_id", _S, "the problem"),
        _c("shown", _I, "beginning of the problem that the policy was shown", "characters"),
        _c("rest", _S, "what follows in the problem"),
        _c("completion", _S, "what the policy wrote, greedily"),
        _c("token_count", _I, "its tokens, EOS included", "tokens"),
        _c("finish_reason", _S, "stop or length"),
        _c("rouge_l", _F, "ROUGE-L (F1 over words) of the rest and as many words of the completion, 0 to 1"),
        _c("exact", _B, "those words are the same"),
        _c("answer", _B, "the gold answer stands in the completion and not in what was shown"),
    ],
    "filtered_samples": [  # d-filtered decoding and its controls: one row per sample and arm
        _c(
            "arm", _S, "filter, plain, greedy, temperature (matched to the filter's entropy) or random (mask by chance)"
        ),
        _c("problem_id", _S, "the problem"),
        _c("sample", _I, "0 .. n-1; greedy has 0 only"),
        _c("seed", _I, "seed of this sample, the same in every arm"),
        _c("temperature", _F, "sampling temperature; 0 is greedy"),
        _c("perturbations", _I, "perturbed prompts the problem has"),
        _c("text", _S, "response text"),
        _c("token_count", _I, "response tokens, EOS included", "tokens"),
        _c("finish_reason", _S, "stop or length"),
        _c("extracted", _S, "content of the last balanced box, empty where there is none"),
        _c("correct", _B, "our verdict"),
        _c("status", _S, "grader status: ok, no_box, unclosed, refused, timeout, unparsable"),
        _c("rejected", _I, "proposals that the mask refused (filter and random only, like the columns below)"),
        _c("budget", _F, "clean probability that the drift mask takes, mean over steps; the random mask's aim"),
        _c("masked_mass", _F, "clean probability that was masked, mean over steps"),
        _c("clean_entropy", _F, "entropy of the clean distribution, mean over steps", "nats"),
        _c("entropy", _F, "entropy of what the mask leaves, renormalised, mean over steps", "nats"),
    ],
    "fidelity_tokens": [  # credit fidelity: one row per token of a measured response
        _c("problem_id", _S, "the problem"),
        _c("sample", _I, "0 .. G-1 of the problem's group"),
        _c("position", _I, "place in the response, from 0", "tokens"),
        _c("piece", _S, "the token's text; empty for a special token"),
        _c("category", _S, "the embedded testbed's own category, else the general one"),
        _c("correct", _B, "our verdict on the whole response"),
        _c("logprob", _F, "log-probability of the token", "nats"),
        _c("margin", _F, "top-2 margin p1 - p2"),
        _c("entropy", _F, "entropy of the next-token distribution", "nats"),
        _c("drift", _F, "mean drift under the problem's perturbations, 0 .. 2; null where it has none"),
        _c("moved", _F, "|change of log p| without the planted features; null where the problem has none", "nats"),
        _c("planted", _B, "only the planted feature moved it: top tenth of `moved`, no significant effect; or null"),
        _c("value", _F, "V before the token: success rate of continuations"),
        _c("value_bound", _F, "how far settling can bias the value"),
        _c("effect", _F, "V after the token less V before it; 0 where settled"),
        _c("se", _F, "standard error of the effect; 0 where settled"),
        _c("variance", _F, "unbiased variance of the effect: effect^2 - variance estimates the squared true effect"),
        _c("bound", _F, "how far settling can bias the effect; 1 - p where the token itself was settled"),
        _c("effect_first", _F, "effect by the first half of the samples"),
        _c("effect_second", _F, "effect by the second half of the samples"),
        _c("drawn", _I, "continuations drawn in place of this token; 0 where settled"),
    ],
    "fidelity_credits": [  # one row per measured token and method
        _c("problem_id", _S, "the problem"),
        _c("sample", _I, "0 .. G-1 of the problem's group"),
        _c("position", _I, "place in the response, from 0", "tokens"),
        _c("method", _S, "method of the study"),
        _c("advantage", _F, "the response's group advantage A"),
        _c("credit", _F, "token advantage A~ at a rollout's first update; 0 where the token is not in the loss"),
    ],
    "fidelity_scores": [  # one row per score of a method, signal or reference
        _c("credit", _S, "method; METHOD:shuffled; signal:NAME; reference:NAME"),
        _c(
            "score",
            _S,
            "rank, rank_open, top20, top20_sq, mass20, sign, sign_mass, planted or share, as defined at the head of "
            "`analysis/fidelity_scores.py`",
        ),
        _c("category", _S, "all; right or wrong (responses); a token category (share)"),
        _c("value", _F, "the score; null where there is nothing to score"),
        _c("low", _F, "lower end of the 95 % interval over problems"),
        _c("high", _F, "upper end"),
        _c("n", _I, "responses (rank), or tokens"),
        _c("problems", _I, "problems they belong to: the unit of the interval"),
    ],
}


GROUP_ROWS = 4096  # of a row group: what is read, and held, to see one row


def schema(name: str) -> pa.Schema:
    """Arrow schema of table `name`; each field carries its meaning and unit as metadata."""
    fields = [pa.field(c.name, c.type, metadata={"meaning": c.meaning, "unit": c.unit}) for c in SCHEMAS[name]]
    return pa.schema(fields, metadata={"tokencredit.table": name})


def write_table(name: str, rows: Sequence[Mapping[str, Any]] | pa.Table, path: Path | str) -> Path:
    """Write rows (dicts with exactly the schema's keys, or an Arrow table) as Parquet, atomically."""
    want = schema(name)
    if not isinstance(rows, pa.Table):
        for i, row in enumerate(rows):
            if set(row) != set(want.names):
                odd = sorted(set(row) ^ set(want.names))
                raise TableError(f"table '{name}', row {i}: columns missing or unknown: {', '.join(odd)}")
        rows = pa.Table.from_pylist([dict(r) for r in rows], schema=want)
    table = rows.select(want.names).cast(want).replace_schema_metadata(want.metadata)
    path = Path(path)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=GROUP_ROWS)
    return path


def read_table(name: str, path: Path | str, columns: Iterable[str] | None = None) -> pa.Table:
    """Read a table and check its columns against the schema; one clear TableError otherwise."""
    path = Path(path)
    if not path.exists():
        raise TableError(f"{path}: no such file (table '{name}'); run the rule that makes it")
    try:
        table = pq.read_table(path, columns=list(columns) if columns is not None else None)
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: damaged or not Parquet ({error}); delete it and run snakemake again") from error
    want = list(columns) if columns is not None else [c.name for c in SCHEMAS[name]]
    missing = [c for c in want if c not in table.column_names]
    if missing:
        raise TableError(f"{path}: table '{name}' lacks the column(s) {', '.join(missing)}")
    return table


def read_row(path: Path | str, index: int) -> dict[str, Any]:
    """One row of a table, by its place from 0, without reading the others but for its row group's. TableError as above.

    Raises IndexError where the table has fewer rows.
    """
    first = 0
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if index < first + rows:
                    row: dict[str, Any] = file.read_row_group(group).slice(index - first, 1).to_pylist()[0]
                    return row
                first += rows
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: damaged or not Parquet ({error}); delete it and run snakemake again") from error
    raise IndexError(f"{path}: {first} rows, asked for row {index}")


class replacing:
    """Context manager: yields a temporary path beside `path`; on success fsyncs and renames it into place."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.temporary

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.temporary.unlink(missing_ok=True)
            return
        with open(self.temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(self.temporary, self.path)


def write_text(path: Path | str, text: str) -> Path:
    """Write text atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: Path | str, value: Any, only_if_changed: bool = False) -> bool:
    """Write JSON with sorted keys, atomically. Returns whether the file was (re)written."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path = Path(path)
    if only_if_changed and path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def read_json(path: Path | str) -> Any:
    """Read a JSON record or spec; one clear TableError where it is missing or damaged."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TableError(f"{path}: no such file; run the rule that makes it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: damaged JSON ({error}); delete it and run snakemake again") from None

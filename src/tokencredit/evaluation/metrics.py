"""Accuracy of one evaluated checkpoint: avg@k, pass@k, length, truncation.

Problems are the unit: every mean is taken over a problem's samples first and over problems second, so a
problem with more samples does not weigh more. Formulas: avg@k = mean over problems of correct / k drawn;
pass@k = 1 - C(n - c, k) / C(n, k), the unbiased estimator from n samples of which c are right (Chen et al.,
arXiv 2107.03374, eq. 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokencredit.study.errors import UserError
from tokencredit.study.tables import read_table

COLUMNS = ("problem_id", "sample", "token_count", "finish_reason", "correct", "correct_library", "status")

Counts = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Draws:
    """The samples themselves, sorted by problem and sample number; every array is [N].

    problem: place in Outcomes.problems; sample: its number; tokens: its length; correct; finished: ended by itself.
    """

    problem: np.ndarray
    sample: np.ndarray
    tokens: np.ndarray
    correct: np.ndarray
    finished: np.ndarray


@dataclass(frozen=True)
class Outcomes:
    """What one checkpoint did on one benchmark, per problem; problems in sorted order.

    problems: P ids. samples, correct, tokens, truncated, library: int64 [P], sums over a problem's samples
    (library: math-verify's own right verdicts, -1 for the problem where any of its samples has none).
    ours_only, library_only: samples that only one of the two graders calls right. statuses: status -> count.
    """

    problems: tuple[str, ...]
    samples: np.ndarray
    correct: np.ndarray
    tokens: np.ndarray
    truncated: np.ndarray
    library: np.ndarray
    ours_only: int
    library_only: int
    statuses: Mapping[str, int]
    draws: Draws

    @property
    def rate(self) -> np.ndarray:
        """Share of right samples per problem, float64 [P]."""
        return self.correct / self.samples

    @property
    def per_problem(self) -> int:
        """Samples per problem: the largest k every problem can answer for."""
        return int(self.samples.min())


def read_outcomes(path: Path | str) -> Outcomes:
    """Outcomes of a `samples` table. UserError: no rows, or a sample number that occurs twice."""
    return outcomes(read_table("samples", path, COLUMNS), str(path))


def outcomes(table: pa.Table, where: str = "samples") -> Outcomes:
    """Per-problem sums of a `samples` table (at least COLUMNS); the order of rows is no matter."""
    if table.num_rows == 0:
        raise UserError(f"{where}: no samples; delete the file and run its rule again")
    ids, index = _numbered(table["problem_id"])
    sample = table["sample"].to_numpy()
    order = np.lexsort((sample, index))
    problem, sample = index[order], sample[order]
    if ((np.diff(problem) == 0) & (np.diff(sample) == 0)).any():
        raise UserError(f"{where}: a sample number occurs twice for one problem; delete it and run again")

    def per_problem(values: np.ndarray) -> np.ndarray:
        return np.bincount(problem, weights=values[order], minlength=len(ids)).astype(np.int64)  # exact below 2^53

    ours = table["correct"].to_numpy()
    asked = pc.is_valid(table["correct_library"]).to_numpy()
    theirs = pc.fill_null(table["correct_library"], False).to_numpy()
    cut, tokens = pc.equal(table["finish_reason"], "length").to_numpy(), table["token_count"].to_numpy()
    right = per_problem(theirs)
    right[per_problem(~asked) > 0] = -1
    names, status = _numbered(table["status"])
    return Outcomes(
        problems=tuple(ids),
        samples=per_problem(np.ones(table.num_rows)),
        correct=per_problem(ours),
        tokens=per_problem(tokens),
        truncated=per_problem(cut),
        library=right,
        ours_only=int((ours & ~theirs & asked).sum()),
        library_only=int((theirs & ~ours & asked).sum()),
        statuses=dict(zip(names, np.bincount(status).tolist(), strict=True)),
        draws=Draws(problem, sample, tokens[order], ours[order], ~cut[order]),
    )


def _numbered(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """The distinct texts of a column in sorted order, and each row's place among them."""
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    words = np.asarray(encoded.dictionary.to_pylist(), dtype=object)
    order = np.argsort(words, kind="stable")
    rank = np.empty(len(words), dtype=np.int64)
    rank[order] = np.arange(len(words))
    return words[order].tolist(), rank[encoded.indices.to_numpy()]


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Chance that at least one of k samples drawn without return from n = samples is right.

    Exact integers until the last division. UserError where k is not in 1..n or correct not in 0..n.

    >>> pass_at_k(1, 32, 16), round(pass_at_k(3, 32, 8), 6)
    (0.5, 0.591935)
    """
    if not 0 <= correct <= samples:
        raise UserError(f"pass@k: {correct} right of {samples} samples is impossible")
    if not 1 <= k <= samples:
        raise UserError(f"pass@{k}: needs 1 <= k <= n, but there are n = {samples} samples")
    total = math.comb(samples, k)
    return (total - math.comb(samples - correct, k)) / total


def mean_pass_at_k(correct: Counts, samples: Counts | int, k: int) -> float:
    """pass@k over problems (the plain mean). correct: [P]; samples: [P] or one number for all."""
    counts = [int(c) for c in correct]
    drawn = [int(n) for n in np.broadcast_to(np.asarray(samples), len(counts))]
    # a benchmark has few distinct (c, n): compute each once
    value = {pair: pass_at_k(*pair, k) for pair in set(zip(counts, drawn, strict=True))}
    return mean([value[pair] for pair in zip(counts, drawn, strict=True)])


def avg_at_k(correct: Counts, samples: Counts | int) -> float:
    """avg@k with k = the samples drawn: mean over problems of correct / samples, in [0, 1]."""
    return mean(np.asarray(correct, dtype=np.float64) / np.asarray(samples))


def mean(values: Sequence[float] | np.ndarray) -> float:
    """Plain mean by exact summation: the order of the values is no matter. UserError where there are none."""
    values = [float(v) for v in values]
    if not values:
        raise UserError("mean of no values: there is no problem, seed or benchmark to average over")
    return math.fsum(values) / len(values)


def macro_mean(scores: Sequence[float]) -> float:
    """Mean over benchmarks, each counting once."""
    return mean(scores)


def micro_mean(scores: Sequence[float], problems: Sequence[int]) -> float:
    """Mean over all problems of all benchmarks: each benchmark counts by its number of problems."""
    if len(scores) != len(problems) or not problems or min(problems) < 1:
        raise UserError("micro mean: needs one score and one positive number of problems per benchmark")
    return math.fsum(s * n for s, n in zip(scores, problems, strict=True)) / sum(problems)


def ladder(samples: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... up to and including the number of samples.

    >>> ladder(1), ladder(8), ladder(24)
    ([1], [1, 2, 4, 8], [1, 2, 4, 8, 16, 24])
    """
    return [2**i for i in range(samples.bit_length()) if 2**i < samples] + [samples]


def summarise(result: Outcomes) -> dict[tuple[str, int], float]:
    """(metric, k) -> value: avg, pass (each k of `ladder`), length_mean (tokens), truncated (share).

    k = n but for pass. Lengths and truncation are means over problems of a problem's mean over its samples.
    """
    n = result.per_problem
    values = {
        ("avg", n): avg_at_k(result.correct, result.samples),
        ("length_mean", n): mean(result.tokens / result.samples),
        ("truncated", n): mean(result.truncated / result.samples),
    }
    for k in ladder(n):
        values["pass", k] = mean_pass_at_k(result.correct, result.samples, k)
    return values

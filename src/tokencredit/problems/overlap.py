r"""Training problems that are also test problems: equal once notation is normalised, or nearly so.

Two texts are compared as words, with LaTeX synonyms made one (`\leq` and `\le`, `\dfrac` and `\frac`), and without
dollar signs, braces, spacing commands and punctuation. Then

    exact   the words agree
    near    the Jaccard index of the sets of word 4-grams is above a threshold, 0.6 by default

One shared run of words proves nothing: "where m and n are relatively prime positive integers. Find m+n" closes
hundreds of different problems, and 13-gram rules raise false alarms on it. The index is over the whole text, and two
short texts with that long closing have to agree without it as well (OUR CHOICE).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

GRAM = 4
NEAR = 0.6
_SYNONYMS = {
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "dfrac": "frac", "tfrac": "frac",
    "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots", "lbrace": "{", "operatorname": "",
    "mathrm": "", "text": "", "textbf": "", "textit": "", "mathbf": "", "left": "", "right": "", "displaystyle": "",
    "quad": "", "qquad": "", "limits": "", "begin": "", "end": "",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORD = re.compile(r"\\?[a-z]+|\d+|[<>=+*/^_-]|[^\x00-\x7f\W]")  # other scripts by the letter


_CLOSING = re.compile(
    r"(?:(?:can|may) be (?:written|expressed)|where)(?: \S+){0,18}? (?:relatively prime|coprime)(?: \S+){0,18}$"
)


@dataclass(frozen=True)
class Overlap:
    """A training problem and the test problem it repeats."""

    train_id: str
    test_id: str
    kind: str  # exact or near
    jaccard: float


def words(text: str) -> tuple[str, ...]:
    r"""The text as comparable words.

    >>> words(r"If $x \leq \dfrac{1}{2}$, find $x$.") == words(r"if \(x \le \frac12\) find x")
    False
    >>> words(r"If $x \leq \dfrac{1}{2}$, find $x$.") == words(r"if \(x \le \frac{1}{2}\) find x")
    True
    """

    def one(match: re.Match[str]) -> str:
        name = _SYNONYMS.get(match.group(1), match.group(1))
        return f" \\{name} " if name else " "

    text = re.sub(r"\\[^A-Za-z]", " ", text)  # \( \) \[ \] \, \! \\ and the like
    return tuple(_WORD.findall(_COMMAND.sub(one, text).lower()))


def grams(items: Sequence[str]) -> frozenset[tuple[str, ...]]:
    """Distinct runs of GRAM words; a shorter text is one run."""
    return frozenset(tuple(items[i : i + GRAM]) for i in range(max(1, len(items) - GRAM + 1)))


def core(items: Sequence[str]) -> tuple[str, ...]:
    """The words without a closing that asks for the parts of a reduced fraction; all of them where nothing is left."""
    text = " ".join(items)
    return tuple(_CLOSING.sub("", text).split()) or tuple(items)


@functools.lru_cache(maxsize=1 << 16)
def _signature(text: str) -> tuple[tuple[str, ...], frozenset[tuple[str, ...]]]:
    """(words, grams) of a text; the same texts are compared with one benchmark after another."""
    found = words(text)
    return found, grams(found)


def _alike(one: Sequence[str], other: Sequence[str], threshold: float) -> bool:
    """Whether the cores of two texts are near."""
    a, b = grams(core(one)), grams(core(other))
    return len(a & b) / len(a | b) > threshold


def find(
    train: Iterable[Mapping[str, Any]], test: Iterable[Mapping[str, Any]], threshold: float = NEAR
) -> list[Overlap]:
    """Every pair of a training row and a test row (tables `problems`) that are the same problem, best first per
    training row. Time grows with the number of shared 4-grams, not with the number of pairs."""
    asked = [(row["problem_id"], *_signature(row["problem"])) for row in test]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, (_, _, runs) in enumerate(asked):
        for run in runs:
            holders[run].append(i)
    out: list[Overlap] = []
    for row in train:
        mine, runs = _signature(row["problem"])
        shared = Counter(i for run in runs for i in holders.get(run, ()))
        found = []
        for i, common in shared.items():
            jaccard = common / (len(runs) + len(asked[i][2]) - common)
            exact = mine == asked[i][1]
            if exact or (jaccard > threshold and _alike(mine, asked[i][1], threshold)):
                found.append(Overlap(row["problem_id"], asked[i][0], "exact" if exact else "near", jaccard))
        out += sorted(found, key=lambda o: (-o.jaccard, o.test_id))
    return out


# ---- the table -------------------------------------------------------------------------------------

TRAIN = "train"
Rows = Sequence[Mapping[str, Any]]


def table(
    train: Rows, benchmarks: Mapping[str, Rows], threshold: float = NEAR, dropped: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows of the table `overlap`: training problems against every benchmark, then benchmarks against each other.

    dropped: the benchmarks whose problems are left out of training.
    Pairs of benchmarks are reported because a macro average counts a problem twice that stands in two of them.
    Variants (tag `base:`) repeat their originals by design, and are not compared with other benchmarks.
    """
    out: list[dict[str, Any]] = []
    for name, rows in tqdm(benchmarks.items(), desc="training problems in benchmarks", mininterval=2, unit="set"):
        out += _pairs(TRAIN, train, name, rows, threshold, name in dropped)
    originals = {name: [r for r in rows if not _is_variant(r)] for name, rows in benchmarks.items()}
    pairs = list(itertools.combinations(originals, 2))
    for one, other in tqdm(pairs, desc="benchmarks in benchmarks", mininterval=2, unit="pair"):
        out += _pairs(one, originals[one], other, originals[other], threshold, False)
    return out


def _is_variant(row: Mapping[str, Any]) -> bool:
    return any(tag.startswith("base:") for tag in row["tags"])


def _pairs(left: str, train: Rows, name: str, test: Rows, threshold: float, drop: bool) -> list[dict[str, Any]]:
    mine, theirs = ({r["problem_id"]: r for r in rows} for rows in (train, test))
    out = []
    for pair in find(train, test, threshold):
        a, b = mine[pair.train_id], theirs[pair.test_id]
        out.append(
            {
                "set": left, "problem_id": pair.train_id, "benchmark": name, "benchmark_problem_id": pair.test_id,
                "kind": pair.kind, "jaccard": pair.jaccard, "dropped": drop, "problem": a["problem"],
                "benchmark_problem": b["problem"], "answer": a["answer"], "benchmark_answer": b["answer"],
            }
        )  # fmt: skip
    return out


def summary(rows: Rows) -> dict[str, Any]:
    """Counts of a table `overlap`: pairs by the two sets and kind, and distinct training problems found."""
    pairs = Counter(f"{r['set']} / {r['benchmark']}: {r['kind']}" for r in rows)
    found = {r["problem_id"] for r in rows if r["set"] == TRAIN}
    dropped = {r["problem_id"] for r in rows if r["set"] == TRAIN and r["dropped"]}
    counts = {"pairs": len(rows), "training_problems": len(found), "dropped": len(dropped)}
    return {"counts": counts, "pairs": dict(sorted(pairs.items()))}

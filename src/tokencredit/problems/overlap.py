r"""Training problems that are also test problems: equal once notation is normalised, or nearly so.

Two texts are compared as words, with LaTeX synonyms made one (`\leq` and `\le`, `\dfrac` and `\frac`), and without
dollar signs, braces, spacing commands and punctuation. Then

    exact   the words agree
    near    the Jaccard index of the sets of word 4-grams is above 0.6

One shared run of words proves nothing: "where m and n are relatively prime positive integers. Find m+n" closes
hundreds of different problems, and 13-gram rules raise false alarms on it; an index over the whole text does not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GRAM = 4
NEAR = 0.6
_SYNONYMS = {
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "dfrac": "frac", "tfrac": "frac",
    "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots", "lbrace": "{", "operatorname": "",
    "mathrm": "", "text": "", "textbf": "", "textit": "", "mathbf": "", "left": "", "right": "", "displaystyle": "",
    "quad": "", "qquad": "", "limits": "", "begin": "", "end": "",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORD = re.compile(r"\\?[a-z]+|\d+|[<>=+*/^_-]")


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


def find(train: Iterable[Mapping[str, Any]], test: Iterable[Mapping[str, Any]]) -> list[Overlap]:
    """Every pair of a training row and a test row (tables `problems`) that are the same problem, best first per
    training row. Time grows with the number of shared 4-grams, not with the number of pairs."""
    asked = [(row["problem_id"], words(row["problem"])) for row in test]
    sets = [grams(w) for _, w in asked]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, runs in enumerate(sets):
        for run in runs:
            holders[run].append(i)
    out: list[Overlap] = []
    for row in train:
        mine = words(row["problem"])
        runs = grams(mine)
        shared = Counter(i for run in runs for i in holders.get(run, ()))
        found = []
        for i, common in shared.items():
            jaccard = common / (len(runs) + len(sets[i]) - common)
            exact = mine == asked[i][1]
            if exact or jaccard > NEAR:
                found.append(Overlap(row["problem_id"], asked[i][0], "exact" if exact else "near", jaccard))
        out += sorted(found, key=lambda o: (-o.jaccard, o.test_id))
    return out

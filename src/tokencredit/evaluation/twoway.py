"""Bootstrap of means over runs and problems together: both are redrawn, crossed, and the samples are not.

    draw of a mean = sum_{s,p} w_s v_p x_sp / sum_{s,p} w_s v_p,    w, v: how often run s and question p were drawn

The pigeonhole bootstrap (Owen, Annals of Applied Statistics 1, 2007): for crossed effects it errs on the wide side.
Redrawing the samples of a problem as well would count their noise twice, and would bias pass@k where k nears n: a
problem with one right sample of n loses it in a third of the draws. Runs are few: with S of them their part of the
variance comes out at (S - 1) / S of what it should be, so that a t interval over runs stands beside this one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokencredit.evaluation.compare import Bootstrap, drawn_counts
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive

DRAWS = 2000


@dataclass(frozen=True)
class Redraw:
    """How often each run and each problem was drawn: runs [R, S]; problems, per benchmark: [R, P_b]."""

    runs: np.ndarray
    problems: tuple[np.ndarray, ...]

    def means(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Draws [R, K] of the mean over benchmarks of the mean over (run, problem). values: [S, P, K] of each."""
        out = np.zeros((len(self.runs), values[0].shape[2]))
        for x, v in zip(values, self.problems, strict=True):
            total = sum(self.runs[:, s, None] * (v @ run) for s, run in enumerate(x))
            out += total / (self.runs.sum(axis=1) * v.sum(axis=1))[:, None]
        return out / len(values)


class Redraws:
    """The draws of a study: a benchmark's problems are redrawn alike for every method, and so are the runs.

    One draw of the macro mean is made of the same draws as its benchmarks.
    """

    def __init__(self, *name: int | str, draws: int = DRAWS):
        self.name, self.draws = name, draws
        self._known: dict[tuple[int | str, ...], np.ndarray] = {}

    def of(self, seeds: Sequence[int], questions: Mapping[str, Sequence[Hashable]]) -> Redraw:
        """seeds: the runs; questions, per benchmark: what question each problem is a row of, drawn as one.

        UserError where there is no run or no problem.
        """
        if not seeds or not questions or not all(map(len, questions.values())):
            raise UserError("bootstrap over runs and problems: needs at least one of each")
        runs = self._drawn(("runs", *seeds), len(seeds))
        problems = []
        for name, labels in questions.items():
            place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
            drawn = self._drawn(("problems", name), len(place))
            problems.append(drawn if len(place) == len(labels) else drawn[:, [place[label] for label in labels]])
        return Redraw(runs, tuple(problems))

    def _drawn(self, what: tuple[int | str, ...], count: int) -> np.ndarray:
        """How often each of `count` was drawn, [R, count]."""
        if what not in self._known:
            rng = np.random.default_rng(derive("two-way bootstrap", *self.name, *what))
            self._known[what] = drawn_counts(rng, self.draws, count)
        return self._known[what]


def spread(point: float, draws: np.ndarray, runs: int, level: float = 0.95) -> Bootstrap:
    """Standard deviation and percentile interval of draws [R]; n counts the runs."""
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(draws, [tail, 100 - tail])
    return Bootstrap(point, float(draws.std()), float(low), float(high), runs, len(draws), False)

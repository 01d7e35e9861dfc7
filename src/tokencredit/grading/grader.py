r"""Score responses against golds: the last box, our verdict, and the library's beside it.

Integers and option letters are decided here, without a process; everything else that is neither identical text nor
refused goes to the pool. Equal (gold, kind, tolerance, box) cost once. The scores are as many as the items and in
their order; a failed item never shifts its neighbours.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from tokencredit.grading.choice import choice_letter
from tokencredit.grading.extract import last_box
from tokencredit.grading.integers import canonical_integer
from tokencredit.grading.pool import Job, Pool
from tokencredit.grading.refuse import refusal
from tokencredit.study.errors import UserError

KINDS = ("integer", "expression", "choice")
CACHE = 100_000  # remembered pairs
EXTRACTED = 1000  # characters of a box that a verdict carries

_SHAPED = re.compile(r"[,=]|\\(?:text|mathrm|mbox)")  # lists, assignments, units: more than an integer
_PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,14}|0")


@dataclass(frozen=True)
class Item:
    """One response to grade. `kind` is one of KINDS; `tolerance` is relative to the gold, None for exact equality.

    `truncated`: the response was cut off, so a box it leaves open is its unknown final answer.
    """

    gold: str
    response: str
    kind: str = "expression"
    tolerance: float | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Verdict:
    """Score of one item.

    correct: ours; correct_library: math-verify's with its defaults on the same box (None with library=False; False
    where there is no box, the box is refused, or the library fails); extracted: the box, at most 1000 characters;
    status: ok, no_box, unclosed, refused, timeout, unparsable or crash; seconds: spent on this pair (0 for a
    remembered one).
    """

    correct: bool
    correct_library: bool | None
    extracted: str
    status: str
    seconds: float


@dataclass(frozen=True)
class _Score:
    correct: bool
    library: bool | None
    status: str


_Pair = tuple[str, str, float | None, str]  # gold, kind, tolerance, box


class Grader:
    """Grades batches; a context manager, since it owns worker processes (started when first needed).

    workers: processes for symbolic answers; library: also ask math-verify; timeout: seconds of processor time for
    each verdict on one pair. `counts`: statuses so far, and the pool's kills and restarts under `pool_`.
    """

    def __init__(self, workers: int = 1, library: bool = True, timeout: float = 5.0):
        if workers < 1 or timeout <= 0:
            raise UserError(f"a grader needs at least one worker and a positive timeout, not {workers} and {timeout}")
        self.library = library
        self.counts: Counter[str] = Counter()
        self.pool = Pool(workers, timeout)
        self._known: OrderedDict[_Pair, _Score] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def grade(self, items: Sequence[Item]) -> list[Verdict]:
        """One verdict for every item, in order. Raises UserError for an unknown kind, before anything is graded."""
        for item in items:
            if item.kind not in KINDS:
                raise UserError(f"unknown answer kind {item.kind!r}: one of {', '.join(KINDS)}")
        started = [time.perf_counter()]
        boxes = []
        for item in items:
            boxes.append(last_box(item.response, item.truncated))
            started.append(time.perf_counter())
        pairs = [
            (i.gold, i.kind, i.tolerance, b.text) if b.status == "ok" else None
            for i, b in zip(items, boxes, strict=True)
        ]
        scores, seconds = self._scores([p for p in pairs if p is not None])
        verdicts = []
        charged: set[_Pair] = set()
        for index, (pair, box) in enumerate(zip(pairs, boxes, strict=True)):
            spent = started[index + 1] - started[index]
            if pair is None:
                verdicts.append(Verdict(False, False if self.library else None, "", box.status, spent))
                continue
            score = scores[pair]
            if pair not in charged:
                spent += seconds.get(pair, 0.0)
                charged.add(pair)
            verdicts.append(Verdict(score.correct, score.library, box.text[:EXTRACTED], score.status, spent))
        with self._lock:
            self.counts.update(v.status for v in verdicts)
            self.counts.update({f"pool_{k}": v - self.counts[f"pool_{k}"] for k, v in self.pool.counts.items()})
        return verdicts

    def _scores(self, pairs: Sequence[_Pair]) -> tuple[dict[_Pair, _Score], dict[_Pair, float]]:
        """Score of every distinct pair, and the seconds spent on those that were not known."""
        scores: dict[_Pair, _Score] = {}
        seconds: dict[_Pair, float] = {}
        asked: dict[_Pair, _Score | None] = {}
        for pair in dict.fromkeys(pairs):
            with self._lock:
                known = self._known.get(pair)
            if known is not None:
                scores[pair] = known
                continue
            start = time.perf_counter()
            local = _decide(pair)
            library = _library_integers(pair[0], pair[3]) if self.library else None
            if local is not None and (not self.library or library is not None or local.status == "refused"):
                scores[pair] = _Score(local.correct, bool(library) if self.library else None, local.status)
                seconds[pair] = time.perf_counter() - start
            else:
                asked[pair] = local
        jobs = [Job(gold, box, tolerance, self.library) for gold, _, tolerance, box in asked]
        for (pair, local), reply in zip(asked.items(), self.pool.run(jobs), strict=True):
            correct, status = (local.correct, local.status) if local else (reply.correct, reply.status)
            scores[pair] = _Score(correct, reply.library, status)
            seconds[pair] = reply.seconds
        with self._lock:
            self._known.update(scores)
            while len(self._known) > CACHE:
                self._known.popitem(last=False)
        return scores, seconds


def _decide(pair: _Pair) -> _Score | None:
    """Our verdict where no computer algebra is needed; None where it is."""
    gold, kind, tolerance, box = pair
    if kind == "integer":
        wanted, given = canonical_integer(gold), canonical_integer(box)
        status = (
            "refused" if given is None and refusal(box, gold) else "unparsable" if None in (wanted, given) else "ok"
        )
        return _Score(wanted is not None and wanted == given, None, status)
    if kind == "choice":
        letter = choice_letter(box)
        return _Score(letter is not None and letter == choice_letter(gold), None, "ok" if letter else "unparsable")
    if refusal(box, gold):
        return _Score(box.strip() == gold.strip(), None, "refused")
    if tolerance is None and not _SHAPED.search(gold):
        wanted = canonical_integer(gold)
        given = canonical_integer(box) if wanted is not None else None
        if given is not None:
            return _Score(wanted == given, None, "ok")
    if box.strip() and box.strip() == gold.strip():
        return _Score(True, None, "ok")
    return None if box.strip() else _Score(False, None, "unparsable")


def _library_integers(gold: str, box: str) -> bool | None:
    """math-verify's verdict on canonical integers of at most 15 digits, which is equality; None for other texts."""
    if _PLAIN_INTEGER.fullmatch(gold) and _PLAIN_INTEGER.fullmatch(box):
        return gold == box
    return None

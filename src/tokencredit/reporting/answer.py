"""The study's answer in two sentences per model, with its uncertainty, and no more than the numbers allow.

First sentence: what each method does against the baseline. Second: what that rests on. A difference whose interval
holds 0 is told as "does not beat", whatever its sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokencredit.evaluation.compare import Comparison, sign_flip_floor, verdict
from tokencredit.evaluation.metrics import mean
from tokencredit.reporting.results import Results
from tokencredit.reporting.text import fixed, interval, listed, seeds, signed

FEW = 3  # up to this many methods are named one by one
LONGER = 1.1  # lengths that differ by more than this factor are named


@dataclass(frozen=True)
class Answer:
    """sentences: two, for reading; details: one verdict per method, with its test."""

    model: str
    sentences: tuple[str, str]
    details: tuple[str, ...]


def answer(results: Results, model: str) -> Answer:
    """The answer for one model, from the headline benchmark at the last step."""
    p = results.plan
    pairs = {m: results.pair(model, m, results.headline) for m in p.challengers}
    first = _first(results, pairs)
    details = tuple(verdict(r, p.label(m), p.label(p.baseline)) for m, r in pairs.items())
    return Answer(model, (first, _second(results, model, pairs)), details)


def _first(results: Results, pairs: dict[str, Comparison | None]) -> str:
    p = results.plan
    base = p.label(p.baseline)
    if p.baseline not in p.methods:
        return f"This study does not train {base}, so there is nothing to compare its methods with."
    if not pairs:
        return f"This study trains {base} alone, so it compares nothing."
    if not any(pairs.values()):
        return f"No method can be compared with {base} yet, for want of a seed that both have in full."
    if len(pairs) <= FEW:
        said = "; ".join(_one(p.label(m), base, r) for m, r in pairs.items())
        return said[0].upper() + said[1:] + "."
    above = [m for m, r in pairs.items() if r and r.evidence and r.difference > 0]
    below = [m for m, r in pairs.items() if r and r.evidence and r.difference < 0]
    open_ = [m for m, r in pairs.items() if r and not r.evidence]
    unknown = [m for m, r in pairs.items() if r is None]

    def names(group: list[str]) -> str:
        return listed([_sized(p.label(m), pairs[m]) for m in group])

    parts = [f"{names(above)} beat{'s' if len(above) == 1 else ''} {base}" if above else f"no method beats {base}"]
    if below:
        parts.append(f"{names(below)} {'is' if len(below) == 1 else 'are'} below it")
    if open_:
        parts.append(f"{names(open_)} cannot be told from it")
    if unknown:
        parts.append(f"{listed([p.label(m) for m in unknown])} cannot be judged yet")
    said = "; ".join(parts)
    return said[0].upper() + said[1:] + "."


def _sized(label: str, r: Comparison | None) -> str:
    return label if r is None else f"{label} ({signed(r.difference)})"


def _one(label: str, base: str, r: Comparison | None) -> str:
    if r is None:
        return f"{label} cannot be compared with {base} yet, for want of a seed that both have in full"
    size = fixed(abs(r.difference))
    span = f"95 % interval {interval(r)}"
    if r.evidence and r.difference > 0:
        return f"{label} beats {base} by {size} points ({span})"
    if r.evidence:
        return f"{label} falls {size} points behind {base} ({span})"
    if r.low is None:
        why = "rests on one seed" if r.n < 2 else "is the same in every seed"
        return f"{label} is not shown to beat {base}: its difference of {signed(r.difference)} points {why}"
    size = signed(r.difference)
    return f"{label} does not beat {base}: its difference of {size} points cannot be told from zero ({span})"


def _second(results: Results, model: str, pairs: dict[str, Comparison | None]) -> str:
    p = results.plan
    found = {m: r for m, r in pairs.items() if r is not None}
    what = p.benchmark_label(results.headline)
    what = what.lower() if results.headline == "macro" else f"“{what}”"
    if not found:
        return f"Nothing has been evaluated at step {p.last} on both sides."
    counts = sorted({r.n for r in found.values()})
    many = seeds(counts[0]) if len(counts) == 1 else f"{counts[0]} to {seeds(counts[-1])}"
    short = f" of {len(p.seeds)} planned" if counts[0] < len(p.seeds) else ""
    basis = f"This is the {what} accuracy at step {p.last} over {many}{short}"
    basis += f", where an exact sign-flip test cannot show less than p = {sign_flip_floor(counts[-1]):.3g}"
    notes = [basis, *_fragile(results, model, found), *_lengths(results, model, found)]
    return "; ".join(notes) + "."


def _fragile(results: Results, model: str, found: dict[str, Comparison]) -> list[str]:
    """Methods whose evidence does not survive Holm's correction for the number of methods."""
    p, family = results.plan, sum(r.p is not None for r in found.values())
    lost = [m for m, r in found.items() if r.evidence and (results.holm(model, m, results.headline) or 0) > 0.05]
    if not lost:
        return []
    names = listed([p.label(m) for m in lost])
    return [f"after Holm's correction for {family} comparisons the evidence for {names} no longer stands"]


def _lengths(results: Results, model: str, found: dict[str, Comparison]) -> list[str]:
    """Methods with evidence whose responses are clearly longer or shorter than the baseline's."""
    p, said = results.plan, []
    theirs = results.values(model, p.baseline, p.last, results.headline, "length_mean")
    for method, r in found.items():
        ours = results.values(model, method, p.last, results.headline, "length_mean")
        shared = sorted(set(ours) & set(theirs))
        if not r.evidence or not shared:
            continue
        low = mean([theirs[s] for s in shared])
        ratio = mean([ours[s] for s in shared]) / low if low else 1.0
        if not 1 / LONGER < ratio < LONGER:
            said.append(f"{p.label(method)}'s answers are {ratio:.1f} times as long as {p.label(p.baseline)}'s")
    return [f"{listed(said)}, and nothing here separates length from credit"] if said else []

"""What the heat maps show: a few responses of a study's tables, chosen by a rule that looks at no shade.

Tables of long responses have millions of rows, so the columns that choose are read first, and of the rest only the
rows of the chosen responses become Python objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tokencredit.analysis.plan import BASE, Plan, layout
from tokencredit.reporting.text import signed
from tokencredit.study.tables import read_json, read_table

PROBLEMS = 2  # per section, and per policy of the last ones

Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True)
class Response:
    """One shaded response. tokens: piece, category and whichever of heatmap.SHADES is known, None where it is not.

    method: whose credit it shows, "" for none; stand_in: the value that is shaded where credit is asked for.
    """

    label: str
    note: str
    tokens: Sequence[Row]
    method: str = ""
    stand_in: str = "credit"


@dataclass(frozen=True)
class Block:
    problem: str
    rewordings: Sequence[tuple[str, str]]
    responses: Sequence[Response]


@dataclass(frozen=True)
class Chapter:
    title: str
    text: str
    blocks: list[Block] = field(default_factory=list)


class Tokens:
    """One table of tokens whose rows stand response after response. heads: key -> its first row's `more` columns."""

    def __init__(self, name: str, path: Path, keys: Sequence[str], more: Sequence[str]):
        self.name, self.path = name, path
        light = read_table(name, path, (*keys, "position", *more))
        starts = np.flatnonzero(light.column("position").to_numpy() == 0)
        heads = light.take(starts).to_pylist()
        ends = [*starts[1:].tolist(), light.num_rows]
        self.heads: dict[Key, Row] = {tuple(h[k] for k in keys): h for h in heads}
        self.places = dict(zip(self.heads, zip(starts.tolist(), ends, strict=True), strict=True))
        self.ids = light.column("token_id").to_numpy() if "token_id" in more else None

    def same(self, other: Tokens, key: Key) -> bool:
        """Whether both hold this response with the same token ids."""
        if key not in self.places or key not in other.places or self.ids is None or other.ids is None:
            return False
        mine, theirs = (t.ids[slice(*t.places[key])] for t in (self, other))  # type: ignore[index]
        return bool(np.array_equal(mine, theirs))

    def rows(self, wanted: Iterable[Key]) -> dict[Key, list[Row]]:
        """Whole rows of these responses."""
        table = read_table(self.name, self.path)
        return {k: table.slice(a, b - a).to_pylist() for k in wanted for a, b in [self.places[k]]}


def chapters(p: Plan, root: Path, model: str) -> list[Chapter]:
    """Everything there is to show of one model; chapters without anything are left out."""
    place, texts = layout(root), Texts(root, p)
    tables = {}
    for cell in p.runs(model):
        path = Path(place.train(cell, "tokens.parquet"))
        if cell.seed == p.seeds[0] and path.exists():
            keys = ("step", "problem_id", "sample")
            tables[cell.method] = Tokens("tokens", path, keys, ("token_id", "group_advantage"))
    folders = [f for f in sorted((root / "analyses").glob(f"*/{model}/*/seed*/step*")) if _belongs(p, f)]
    found = [_first(p, tables, texts), _last(p, tables, texts), *_frozen(p, folders, texts)]
    found += [_measured(p, f, texts) for f in folders if (f / "fidelity_tokens.parquet").exists()]
    return [c for c in found if c.blocks]


def _belongs(p: Plan, folder: Path) -> bool:
    """Whether the folder of an analysis is of a policy of this study, not one left from an earlier grid."""
    return folder.parent.parent.name in (BASE, *p.methods)


def _first(p: Plan, tables: Mapping[str, Tokens], texts: Texts) -> Chapter:
    """The first rollout: equal tokens, every method's credit; drift from whichever method probed it."""
    chapter = Chapter(
        "The same answers under every method",
        "The first rollout of a seed is the same for all methods. What differs is the credit each one gives. Drift is "
        "known where a method of the study probed it.",
    )
    shown = [m for m in p.methods if m in tables]
    if not shown:
        return chapter
    first = tables[shown[0]]
    common = [k for k in sorted(first.heads) if k[0] == 0 and all(first.same(tables[m], k) for m in shown)]
    pairs = [_two(first, [k for k in common if k[1] == problem]) for problem in _mixed(first, common)[:PROBLEMS]]
    rows = {m: tables[m].rows([k for pair in pairs for k in pair]) for m in shown}
    for pair in pairs:
        responses = []
        for key in pair:
            drifts = next((d for m in shown if None not in (d := [t["drift"] for t in rows[m][key]])), None)
            for m in shown:
                tokens = [{**t, "drift": drifts[i] if drifts else None} for i, t in enumerate(rows[m][key])]
                responses.append(Response(p.label(m), _note(tokens[0]), tokens, m))
        chapter.blocks.append(Block(*texts.of(pair[0][1]), responses))
    return chapter


def _last(p: Plan, tables: Mapping[str, Tokens], texts: Texts) -> Chapter:
    """What each method wrote and credited in its last kept rollout with both rewards."""
    chapter = Chapter("At the end of training", "A right and a wrong answer of each method's last kept rollout.")
    for method in (m for m in p.methods if m in tables):
        table = tables[method]
        last = max((k[0] for k in table.heads), default=0)
        keys = [k for k in sorted(table.heads) if k[0] == last > 0]
        for problem in _mixed(table, keys)[:1]:
            pair = _two(table, [k for k in keys if k[1] == problem])
            rows = table.rows(pair)
            responses = [Response(p.label(method), f"step {last}, {_note(t[0])}", t, method) for t in rows.values()]
            chapter.blocks.append(Block(*texts.of(problem), responses))
    return chapter


def _frozen(p: Plan, folders: Sequence[Path], texts: Texts) -> list[Chapter]:
    """Responses of the diagnostic panels, the same problems for every policy: no credit, but drift and margin."""
    found = []
    panels: dict[str, list[Path]] = {}
    for folder in folders:
        if (folder / "panel_tokens.parquet").exists() and (folder / "record.json").exists():
            panels.setdefault(folder.parents[3].name, []).append(folder)
    for name, of in panels.items():
        chapter = Chapter(
            "How frozen policies wrote",
            f"One answer of each policy to the same problem (analysis {name}). There is no credit here: shade by "
            "drift, hesitation or entropy. A token's numbers also tell its drift under each kind of rewording.",
        )
        tables = {f: Tokens("panel_tokens", f / "panel_tokens.parquet", ("problem_id",), ("correct",)) for f in of}
        outcomes: dict[Key, Key] = {}  # problem -> which policies were right, of those that all policies answered
        for key in next(iter(tables.values())).heads:
            if all(key in t.heads for t in tables.values()):
                outcomes[key] = tuple(t.heads[key]["correct"] for t in tables.values())
        chosen = _varied(outcomes)
        rows = {f: t.rows(chosen) for f, t in tables.items()}
        for key in chosen:
            responses = [_frozen_response(p, f, rows[f][key]) for f in of]
            chapter.blocks.append(Block(*texts.of(key[0]), responses))
        found.append(chapter)
    return found


def _frozen_response(p: Plan, folder: Path, tokens: Sequence[Row]) -> Response:
    kinds = read_json(folder / "record.json")["spec"]["analysis"]["kinds"]
    told = [
        {**t, "perturbed": {k: v for k, v in zip(kinds, t["perturbed"], strict=True) if v is not None}} for t in tokens
    ]
    return Response(_policy(p, folder), "right" if tokens[0]["correct"] else "wrong", told)


def _policy(p: Plan, folder: Path) -> str:
    step = folder.name.removeprefix("step")
    return p.label(folder.parent.parent.name) + (f", step {step}" if step != "0" else "")


def _varied(outcomes: Mapping[Key, Key]) -> list[Key]:
    """The first problem of every outcome, those first that policies differ in or that came first; at most PROBLEMS."""
    firsts: dict[Key, Key] = {}
    for problem, outcome in outcomes.items():
        firsts.setdefault(outcome, problem)
    ranked = sorted(firsts.items(), key=lambda item: len(set(item[0])) == 1)  # stable: problems keep their order
    return [problem for _, problem in ranked[:PROBLEMS]]


def _measured(p: Plan, folder: Path, texts: Texts) -> Chapter:
    """Responses of the credit-fidelity analysis: effect beside every method's credit."""
    chapter = Chapter(
        f"What each position did, and who credits it: {_policy(p, folder)}",
        "Effect: how much the chance of a right answer changed with the token, by continuations sampled before and "
        "after it, shaded on a scale of its own. Under it every method's credit for the same answer. Shown are the "
        "answers with the largest effects.",
    )
    keys = ("problem_id", "sample")
    tokens = Tokens("fidelity_tokens", folder / "fidelity_tokens.parquet", keys, ("effect",))
    effect = np.abs(read_table("fidelity_tokens", tokens.path, ("effect",)).column("effect").to_numpy())
    ranked = sorted(tokens.places, key=lambda k: (-effect[slice(*tokens.places[k])].sum(), k))
    rows = tokens.rows(ranked[:PROBLEMS])
    credit = _credits(folder / "fidelity_credits.parquet", rows)
    for key, found in rows.items():
        note = "right" if found[0]["correct"] else "wrong"
        responses = [Response("Effect", note, found, stand_in="effect")]
        for m in (m for m in p.methods if (*key, 0, m) in credit):
            told = [{**t, "credit": credit[(*key, t["position"], m)]} for t in found]
            responses.append(Response(p.label(m), note, told, m))
        chapter.blocks.append(Block(*texts.of(key[0]), responses))
    return chapter


def _credits(path: Path, wanted: Collection[Key]) -> dict[Key, float]:
    """(problem, sample, position, method) -> credit, of the wanted (problem, sample)s."""
    table = read_table("fidelity_credits", path)
    out = {}
    for problem, sample in wanted:
        here = pc.and_(pc.equal(table.column("problem_id"), problem), pc.equal(table.column("sample"), sample))
        for c in table.filter(here).to_pylist():
            out[problem, sample, c["position"], c["method"]] = c["credit"]
    return out


def _mixed(table: Tokens, keys: Iterable[Key]) -> list[str]:
    """Problems with answers of both signs of advantage, in the order of `keys`."""
    signs: dict[str, set[bool]] = {}
    for key in keys:
        a = table.heads[key]["group_advantage"]
        if a:
            signs.setdefault(key[1], set()).add(a > 0)
    return [problem for problem, s in signs.items() if len(s) == 2]


def _two(table: Tokens, keys: Sequence[Key]) -> list[Key]:
    """The first right and the first wrong of one problem's responses."""
    pick = [next((k for k in keys if (table.heads[k]["group_advantage"] > 0) is sign), None) for sign in (True, False)]
    return [k for k in pick if k is not None]


def _note(token: Row) -> str:
    a = token["group_advantage"]
    return f"{'right' if a > 0 else 'wrong'}, advantage {signed(a, 2, 1.0)}"


class Texts:
    """Problems and their rewordings by id, of the training problems and of every benchmark."""

    def __init__(self, root: Path, p: Plan):
        place = layout(root)
        self.problems: dict[str, str] = {}
        self.rewordings: dict[str, list[tuple[str, str]]] = {}
        sets = [("train", place.problems), *((b.name, place.benchmark(b.name)) for b in p.benchmarks)]
        for name, path in sets:
            if Path(path).exists():
                for row in read_table("problems", path, ("problem_id", "problem")).to_pylist():
                    self.problems[row["problem_id"]] = row["problem"]
            if Path(place.perturbed(name)).exists():
                for row in read_table("semifactuals", place.perturbed(name)).to_pylist():
                    if row["valid"]:
                        self.rewordings.setdefault(row["problem_id"], []).append((row["kind"], row["text"]))

    def of(self, problem: str) -> tuple[str, list[tuple[str, str]]]:
        """Text and rewordings; the id itself where no table has it."""
        return self.problems.get(problem, problem), self.rewordings.get(problem, [])

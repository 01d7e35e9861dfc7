"""Token heat maps: responses shaded by credit, effect, drift, margin or entropy; one page per model that stands alone.

First the same responses under every method (all methods of a seed share their first rollout), then what each method
wrote and credited at its last step, then responses whose positions were measured by Monte Carlo (credit fidelity).
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from tokencredit.analysis.plan import BASE, Plan, layout
from tokencredit.reporting.text import listed, signed
from tokencredit.study.tables import read_table, write_text

SIGNED = ("credit", "effect")
SHADES = {
    "credit": "credit (token advantage)",
    "effect": "Monte Carlo effect",
    "drift": "drift",
    "hesitation": "hesitation (1 - margin)",
    "entropy": "entropy, nats",
}
PROBLEMS = 2  # per section
TOKENS = 20_000  # of one response; longer ones are cut, and say so
# controls that turn the reading direction, and others without a shape
UNSEEN = re.compile("[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")

Row = dict[str, Any]


@dataclass(frozen=True)
class Response:
    """One shaded response. tokens: piece, category and whichever of SHADES is known, None where it is not."""

    label: str
    note: str
    tokens: Sequence[Row]


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


def names(p: Plan) -> list[str]:
    return [f"heatmaps_{model}.html" for model in p.models]


def write(p: Plan, root: Path, out: Path) -> list[Path]:
    """heatmaps_{model}.html of every model into `out`; one with nothing to show says so."""
    return [write_text(out / f"heatmaps_{m}.html", render(m, chapters(p, root, m))) for m in p.models]


# --- what is shown ---


def chapters(p: Plan, root: Path, model: str) -> list[Chapter]:
    place, texts = layout(root), Texts(root, p)
    tables = {}
    for cell in p.runs():
        path = Path(place.train(cell, "tokens.parquet"))
        if cell.model == model and cell.seed == p.seeds[0] and path.exists():
            tables[cell.method] = _responses(read_table("tokens", path).to_pylist())
    found = [_first(p, tables, texts), *_last(p, tables, texts), *_measured(p, root, model, texts)]
    return [c for c in found if c.blocks]


def _responses(rows: Sequence[Row]) -> dict[tuple[int, str, int], list[Row]]:
    """(step, problem, sample) -> its tokens in order."""
    out: dict[tuple[int, str, int], list[Row]] = {}
    for row in rows:
        row["hesitation"] = 1 - row["margin"]
        out.setdefault((row["step"], row["problem_id"], row["sample"]), []).append(row)
    return out


def _first(p: Plan, tables: Mapping[str, Any], texts: Texts) -> Chapter:
    """The first rollout: equal tokens, every method's credit; drift from whichever method probed it."""
    chapter = Chapter(
        "The same answers under every method",
        "The first rollout of a seed is the same for all methods. What differs is the credit each one gives. Drift is "
        "known where a method of the study probed it.",
    )
    shown = [m for m in p.methods if m in tables]
    if not shown:
        return chapter
    common = set.intersection(*({k for k in tables[m] if k[0] == 0} for m in shown))
    common = {k for k in common if len({tuple(t["token_id"] for t in tables[m][k]) for m in shown}) == 1}
    for problem in _mixed(tables[shown[0]], common)[:PROBLEMS]:
        responses = []
        for key in _two(tables[shown[0]], [k for k in sorted(common) if k[1] == problem]):
            drifts = next((d for m in shown if None not in (d := [t["drift"] for t in tables[m][key]])), None)
            for m in shown:
                tokens = [{**t, "drift": drifts[i] if drifts else None} for i, t in enumerate(tables[m][key])]
                responses.append(Response(p.label(m), _note(tokens[0]), tokens))
        chapter.blocks.append(Block(*texts.of(problem), responses))
    return chapter


def _last(p: Plan, tables: Mapping[str, Any], texts: Texts) -> list[Chapter]:
    """What each method wrote and credited in its last rollout."""
    chapter = Chapter("At the end of training", "A right and a wrong answer of each method's last rollout.")
    for method in (m for m in p.methods if m in tables):
        table = tables[method]
        last = max((k[0] for k in table), default=0)
        keys = {k for k in table if k[0] == last and last > 0}
        for problem in _mixed(table, keys)[:1]:
            pair = _two(table, [k for k in sorted(keys) if k[1] == problem])
            responses = [Response(p.label(method), _note(table[k][0]), table[k]) for k in pair]
            chapter.blocks.append(Block(*texts.of(problem), responses))
    return [chapter]


def _measured(p: Plan, root: Path, model: str, texts: Texts) -> list[Chapter]:
    """Responses of the credit-fidelity analysis: effect beside every method's credit."""
    chapter = Chapter(
        "What each position did, and who credits it",
        "Effect: how much the chance of a right answer changed with the token, by continuations sampled before and "
        "after it. Beside it every method's credit for the same answer.",
    )
    for folder in sorted((root / "analyses").glob(f"*/{model}/*/seed*/step*")):
        if not (folder / "fidelity_tokens.parquet").exists():
            continue
        policy = folder.parent.parent.name
        rows = read_table("fidelity_tokens", folder / "fidelity_tokens.parquet").to_pylist()
        credits: dict[tuple[str, int, int], dict[str, float]] = {}
        for c in read_table("fidelity_credits", folder / "fidelity_credits.parquet").to_pylist():
            credits.setdefault((c["problem_id"], c["sample"], c["position"]), {})[c["method"]] = c["credit"]
        by: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            by.setdefault((row["problem_id"], row["sample"]), []).append(row)
        ranked = sorted(by, key=lambda k: (-sum(abs(t["effect"]) for t in by[k]), k))
        label = "the base model" if policy == BASE else p.label(policy)
        for key in ranked[:PROBLEMS]:
            responses = [Response("Effect", f"answer of {label}", [_fidelity(t, t["effect"]) for t in by[key]])]
            for m in (m for m in p.methods if m in credits.get((*key, 0), {})):
                tokens = [_fidelity(t, t["effect"], credits[(*key, t["position"])][m]) for t in by[key]]
                responses.append(Response(p.label(m), f"answer of {label}", tokens))
            chapter.blocks.append(Block(*texts.of(key[0]), responses))
    return [chapter]


def _fidelity(t: Row, effect: float, credit: float | None = None) -> Row:
    return {**t, "hesitation": 1 - t["margin"], "effect": effect, "credit": effect if credit is None else credit}


def _mixed(table: Mapping[tuple[int, str, int], list[Row]], keys: set[tuple[int, str, int]]) -> list[str]:
    """Problems with answers of both signs of advantage, in order."""
    signs: dict[str, set[bool]] = {}
    for key in sorted(keys):
        a = table[key][0]["group_advantage"]
        if a:
            signs.setdefault(key[1], set()).add(a > 0)
    return [problem for problem, s in signs.items() if len(s) == 2]


def _two(
    table: Mapping[tuple[int, str, int], list[Row]], keys: Sequence[tuple[int, str, int]]
) -> list[tuple[int, str, int]]:
    """The first right and the first wrong of one problem's responses."""
    pick = [next((k for k in keys if (table[k][0]["group_advantage"] > 0) is right), None) for right in (True, False)]
    return [k for k in pick if k is not None]


def _note(token: Row) -> str:
    return (
        f"{'right' if token['group_advantage'] > 0 else 'wrong'}, advantage {signed(token['group_advantage'], 2, 1.0)}"
    )


class Texts:
    """Problems and their rewordings by id."""

    def __init__(self, root: Path, p: Plan):
        place = layout(root)
        self.problems: dict[str, str] = {}
        self.rewordings: dict[str, list[tuple[str, str]]] = {}
        paths = [Path(place.problems), *(Path(place.benchmark(b.name)) for b in p.benchmarks)]
        for path in (x for x in paths if x.exists()):
            for row in read_table("problems", path, ("problem_id", "problem")).to_pylist():
                self.problems[row["problem_id"]] = row["problem"]
        if Path(place.semifactuals).exists():
            for row in read_table("semifactuals", place.semifactuals).to_pylist():
                if row["valid"]:
                    self.rewordings.setdefault(row["problem_id"], []).append((row["kind"], row["text"]))

    def of(self, problem: str) -> tuple[str, list[tuple[str, str]]]:
        return self.problems.get(problem, problem), self.rewordings.get(problem, [])


# --- how it is shown ---


def render(model: str, shown: Sequence[Chapter]) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    tokens = [t for c in shown for b in c.blocks for r in b.responses for t in r.tokens]
    scales = {shade: scale([t.get(shade) for t in tokens]) for shade in SHADES}
    shades = {shade: name for shade, name in SHADES.items() if scales[shade] is not None}
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["spans"] = lambda r: Markup(spans(r.tokens, scales))
    environment.filters["visible"] = visible
    sheet = resources.files("tokencredit.reporting").joinpath("templates", "heatmap.css").read_text(encoding="utf-8")
    return environment.get_template("heatmap.html.j2").render(
        model=model,
        chapters=shown,
        shades=shades,
        signed=SIGNED,
        scales={shade: f"{scales[shade]:.3g}" for shade in shades},
        rules=Markup(sheet + "\n".join(rule(shade) for shade in shades)),
    )


def scale(values: Sequence[float | None]) -> float | None:
    """The 98th percentile of the absolute values: where a shade is full. None where nothing is known."""
    known = sorted(abs(v) for v in values if v is not None and math.isfinite(v))
    return (known[int(0.98 * (len(known) - 1))] or known[-1] or 1.0) if known else None


def rule(shade: str) -> str:
    """The style rules of one shading: full colour at the scale's end, blue below 0 where values have a sign."""
    v = f"--{shade}"
    where = f"body:has(#by-{shade}:checked)"
    if shade in SIGNED:
        up = f"color-mix(in oklab, var(--up) calc(var({v}, 0) * 100%), transparent)"
        down = f"color-mix(in oklab, var(--down) calc(var({v}, 0) * -100%), transparent)"
        return f"{where} i.{shade[0]}p {{ background: {up}; }} {where} i.{shade[0]}n {{ background: {down}; }}"
    return f"{where} i {{ background: color-mix(in oklab, var(--hot) calc(var({v}, 0) * 100%), transparent); }}"


def spans(tokens: Sequence[Row], scales: Mapping[str, float | None]) -> str:
    """One <i> per token: style variables for the shades, its numbers in data-n."""
    out = []
    for t in tokens[:TOKENS]:
        style, classes, numbers = [], [], []
        for shade, full in scales.items():
            value = t.get(shade)
            if full is None or value is None or not math.isfinite(value):
                continue
            style.append(f"--{shade}:{max(-1.0, min(1.0, value / full)):.2f}")
            numbers.append(f"{shade} {value:.4g}")
            if shade in SIGNED and value:
                classes.append(f"{shade[0]}{'p' if value > 0 else 'n'}")
        if t.get("logprob") is not None:
            numbers.append(f"p {math.exp(t['logprob']):.4g}")
        data = html.escape(f"{t['category']}; {'; '.join(numbers)}")
        kind = f' class="{" ".join(classes)}"' if classes else ""
        out.append(f'<i{kind} style="{";".join(style)}" data-n="{data}">{visible(t["piece"])}</i>')
    if len(tokens) > TOKENS:
        out.append(f"<b>… {len(tokens) - TOKENS:,} more tokens</b>")
    return "".join(out)


def visible(piece: str) -> str:
    """Escaped text whose line ends, blanks at the edge and unseen characters can be seen.

    >>> visible("a<b>")
    'a&lt;b&gt;'
    """
    from markupsafe import Markup

    if not piece:
        return Markup('<s title="special token, or half a character">·</s>')
    text = UNSEEN.sub(lambda m: f"⟨U+{ord(m.group()):04X}⟩", piece)
    return Markup(html.escape(text).replace("\n", "<s>¶</s>\n").replace("\t", "<s>⇥</s>\t"))


def summary(p: Plan) -> str:
    """The sentence by which the report links to the pages."""
    links = [f'<a href="heatmaps_{html.escape(m)}.html">{html.escape(m)}</a>' for m in p.models]
    return f"Answers shaded token by token, by credit, drift, margin and entropy: {listed(links)}."

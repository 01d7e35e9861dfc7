"""Token heat maps: responses shaded by credit, effect, drift, margin or entropy; one page per model that stands alone.

First the same responses under every method (all methods of a seed share their first rollout), then what each method
wrote and credited at its last step, then answers of frozen policies (the panel) and those whose positions were
measured by Monte Carlo (credit fidelity). A shade is a class of one of LEVELS steps, so that long answers stay small.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from tokencredit.analysis.plan import Plan
from tokencredit.reporting.heatmap_sources import Chapter, Response, Row, chapters
from tokencredit.reporting.text import MINUS, listed
from tokencredit.study.tables import write_text

SIGNED = ("credit", "effect")
SHADES = {
    "credit": "credit (token advantage)",
    "effect": "Monte Carlo effect",
    "drift": "drift",
    "hesitation": "hesitation (1 \N{MINUS SIGN} margin)",
    "entropy": "entropy, nats",
}
LETTERS = {"credit": "ck", "effect": "ef", "drift": "d", "hesitation": "h", "entropy": "n"}  # of classes: up, down
NUMBERS = ("credit", "effect", "drift", "margin", "entropy", "p")
LEVELS = 12  # of a shade between nothing and its full colour
PAGE = 120_000  # tokens of one page; beyond it every answer is cut at the same length, and says so
# controls that turn the reading direction, and others without a shape
UNSEEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def names(p: Plan) -> list[str]:
    """Files that `write` makes."""
    return [f"heatmaps_{model}.html" for model in p.models]


def write(p: Plan, root: Path, out: Path) -> list[Path]:
    """heatmaps_{model}.html of every model into `out`; one with nothing to show says so."""
    return [write_text(out / f"heatmaps_{m}.html", render(m, chapters(p, root, m))) for m in p.models]


def render(model: str, shown: Sequence[Chapter]) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    responses = [r for c in shown for b in c.blocks for r in b.responses]
    scales = {shade: scale([value(t, shade) for r in responses for t in r.tokens]) for shade in SHADES}
    shades = {shade: name for shade, name in SHADES.items() if scales[shade] is not None}
    methods = {r.method: r.label for r in responses if r.method}
    words = sorted({t["category"] for r in responses for t in r.tokens})
    cap = longest([len(r.tokens) for r in responses], PAGE)
    environment = Environment(
        loader=PackageLoader("tokencredit.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["spans"] = lambda r: Markup(spans(r, scales, words, cap))
    environment.filters["visible"] = visible
    sheet = resources.files("tokencredit.reporting").joinpath("templates", "heatmap.css").read_text(encoding="utf-8")
    return environment.get_template("heatmap.html.j2").render(
        model=model,
        chapters=shown,
        shades=shades,
        signed=SIGNED,
        minus=MINUS,
        scales={shade: f"{scales[shade]:.3g}" for shade in shades},
        methods=list(methods.items()) if len(methods) > 1 else [],
        number={method: i for i, method in enumerate(methods)},
        words=Markup(json.dumps([words, NUMBERS]).replace("<", "\\u003c")),
        rules=Markup("\n".join([sheet, *(rule for shade in shades for rule in rules(shade))])),
    )


def value(token: Row, shade: str) -> float | None:
    """What is shaded, None where it is not known."""
    if shade == "hesitation":
        margin = value(token, "margin")
        return None if margin is None else 1 - margin
    if shade == "p":
        logprob = value(token, "logprob")
        return None if logprob is None else math.exp(logprob)
    found = token.get(shade)
    return found if found is not None and math.isfinite(found) else None


def scale(values: Sequence[float | None]) -> float | None:
    """The 98th percentile of the absolute values: where a shade is full. None where nothing is known."""
    known = sorted(abs(v) for v in values if v is not None)
    return (known[int(0.98 * (len(known) - 1))] or known[-1] or 1.0) if known else None


def longest(lengths: Sequence[int], room: int) -> int:
    """The largest length at which answers of these lengths, each cut there, fit into `room` tokens.

    >>> longest([10, 200, 300], 500), longest([10, 20], 500)
    (290, 20)
    """
    left, cap = room, 0
    for i, length in enumerate(sorted(lengths)):
        cap = left // (len(lengths) - i)
        if length > cap:
            return max(1, cap)
        left, cap = left - length, length
    return max(1, cap)


def level(number: float, full: float) -> int:
    """0 for next to nothing, up to LEVELS at the scale's end and beyond.

    >>> level(0.0, 2.0), level(0.001, 2.0), level(-1.0, 2.0), level(9.0, 2.0)
    (0, 0, 6, 12)
    """
    return min(LEVELS, round(abs(number) / full * LEVELS))


def rules(shade: str) -> list[str]:
    """Style rules of one shading. What is below 0 is blue and has a line under it, so that print tells it too."""
    where, out = f"body:has(#by-{shade}:checked)", []
    for letter, colour in zip(LETTERS[shade], ("up", "down") if shade in SIGNED else ("hot",), strict=True):
        line = " box-shadow: inset 0 -2px var(--down);" if colour == "down" else ""
        for i in range(1, LEVELS + 1):
            mixed = f"color-mix(in oklab, var(--{colour}) {100 * i / LEVELS:.0f}%, transparent)"
            out.append(f"{where} .{letter}{i} {{ background: {mixed};{line} }}")
    return out


def spans(r: Response, scales: Mapping[str, float | None], words: Sequence[str], cap: int) -> str:
    """One <i> per token: its level in every shading as a class, its category's place and its numbers in data-n."""
    place, out = {word: str(i) for i, word in enumerate(words)}, []
    for t in r.tokens[:cap]:
        classes = []
        for shade, letters in LETTERS.items():
            taken = r.stand_in if shade == "credit" else shade
            number, full = value(t, taken), scales.get(taken)
            step = level(number, full) if number is not None and full else 0
            if number is not None and step:
                classes.append(f"{letters[-1] if number < 0 else letters[0]}{step}")
        numbers = [place[t["category"]], *(_short(value(t, name)) for name in NUMBERS)]
        numbers += [html.escape(f"{kind} {_drift(t, v):.3g}") for kind, v in t.get("perturbed", {}).items()]
        kind = f' class="{" ".join(classes)}"' if classes else ""
        out.append(f'<i{kind} data-n="{"|".join(numbers)}">{visible(t["piece"])}</i>')
    if len(r.tokens) > cap:
        out.append(f"<b>… {len(r.tokens) - cap:,} more tokens</b>")
    return "".join(out)


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"


def _drift(token: Row, perturbed: float) -> float:
    """2 tanh(|log p0 - log pk| / 2): the token's drift under one kind alone."""
    return 2 * math.tanh(abs(token["logprob"] - perturbed) / 2)


def visible(piece: str) -> str:
    """Escaped text whose line ends and unseen characters can be seen.

    >>> visible("a<b>")
    Markup('a&lt;b&gt;')
    """
    from markupsafe import Markup

    if not piece:
        return Markup("<s>·</s>")
    text = UNSEEN.sub(lambda m: f"⟨U+{ord(m.group()):04X}⟩", piece)
    return Markup(html.escape(text).replace("\n", "<s>¶</s>\n").replace("\t", "<s>⇥</s>\t"))


def summary(p: Plan) -> str:
    """The sentence by which the report links to the pages."""
    links = [f'<a href="heatmaps_{html.escape(m)}.html">{html.escape(m)}</a>' for m in p.models]
    return f"Answers shaded token by token, by credit, drift, margin and entropy: {listed(links)}."

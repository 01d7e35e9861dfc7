"""matplotlib's SVG made fit to stand inside the page: own ids, theme colours, the page's font, nothing fetched."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path

from tokencredit.reporting import style
from tokencredit.study.errors import UserError

# neutral colours of the figures: light -> dark
NEUTRALS = {style.INK: "#e8e6e1", style.MUTED: "#a2a9b3", style.GRID: "#343a42", style.PAPER: "#16191d"}


def palette(methods: Iterable[str]) -> dict[str, str]:
    """Every colour the figures of these methods use: light -> dark."""
    methods = list(methods)
    looks = [style.look(m, methods) for m in [style.BASE, *methods]]
    return {**NEUTRALS, **{light: dark for light, dark, _ in looks}}


def variable(colour: str) -> str:
    """Name of the CSS variable that stands for a light colour.

    >>> variable("#0a66b2")
    '--c-0a66b2'
    """
    return f"--c-{colour.removeprefix('#')}"


def inline_svg(path: Path | str, alt: str, colours: Iterable[str]) -> str:
    """The figure as an <svg> element with `alt` as its accessible name. UserError where the file is none."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file; draw the figures before the page")
    text = path.read_text(encoding="utf-8")
    start, end = text.find("<svg"), text.rfind("</svg>")
    if start < 0 or end < 0:
        raise UserError(f"{path}: not an SVG file; delete it and draw the figures again")
    text = text[start:end] + "</svg>"
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)  # its one rule stands in the page's style sheet
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    name = re.sub(r"[^A-Za-z0-9]", "-", path.stem)
    text = re.sub(r'\sid="([^"]*)"', rf' id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]*)"', rf'href="#{name}-\1"', text)
    for colour in colours:
        text = text.replace(colour, f"var({variable(colour)})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    width, height = (float(v) for v in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0])
    head = f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" style="--w: {width:g}" role="img"'
    return re.sub(r"<svg[^>]*>", f'{head} aria-label="{html.escape(alt)}">', text, count=1)

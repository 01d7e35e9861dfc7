"""House style of every figure: one colour and marker per method, light grid, labels at the lines.

Colours keep at least 3:1 contrast on white and stay apart for the common colour deficiencies; marker and dash tell
methods apart without colour. The report swaps each for its dark-mode partner through CSS variables, so what
stands here is also the only list of colours the page has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokencredit.analysis.plan import BASE
from tokencredit.study.tables import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#22262b", "#646b75", "#dfe3e8", "#fefefe"

# name: (light, dark, marker). The baseline is a neutral, so that colour means "not the baseline".
METHOD_STYLES = {
    BASE: ("#8d949e", "#8b939d", "."),
    "grpo": ("#4a525c", "#b4bdc8", "o"),
    "mcpo": ("#0a66b2", "#62b4f7", "s"),
    "scapo": ("#c24a06", "#ff9a56", "^"),
    "mcpo_scapo": ("#8a2f8f", "#dd92e0", "D"),
    "cf_grpo": ("#0b7a57", "#46cfa0", "v"),
    "fipo": ("#937000", "#e3bf45", "P"),
    "gspo": ("#b02a5b", "#f588ae", "X"),
    "sapo": ("#0b7f92", "#52d1e4", "<"),
    "dapo": ("#5a4fcf", "#aaa2ff", ">"),
    "dr_grpo": ("#7a5230", "#d9a67c", "h"),
    "entropy": ("#5b7f00", "#b4d64f", "*"),
}
SPARE = (("#2f7d32", "#8bd48e", "p"), ("#9c3d2e", "#f2988b", "d"), ("#37618c", "#9cc3ea", "H"))
FONT = ["DejaVu Sans"]
CROWD = 4  # more methods than this are drawn with smaller marks and fainter bands

RC: dict[str, Any] = {
    "svg.hashsalt": "tokencredit", "svg.fonttype": "none", "font.family": FONT, "font.size": 9.0,
    "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlecolor": INK,
    "axes.labelsize": 8.5, "axes.labelcolor": MUTED, "axes.edgecolor": GRID, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.color": GRID, "ytick.color": GRID, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "ytick.left": False, "text.color": INK,
    "lines.linewidth": 1.8, "lines.markersize": 4.2, "lines.solid_capstyle": "round",
    "axes.unicode_minus": True, "figure.dpi": 100, "savefig.dpi": 160, "path.simplify": True,
}  # fmt: skip


def look(method: str, methods: Sequence[str]) -> tuple[str, str, str]:
    """(light colour, dark colour, marker) of a method; one that the house does not know takes a spare, in turn."""
    if method in METHOD_STYLES:
        return METHOD_STYLES[method]
    strangers = [m for m in methods if m not in METHOD_STYLES]
    return SPARE[strangers.index(method) % len(SPARE)]


def dash(method: str, baseline: str) -> Any:
    """Line style: dotted for the untrained model, dashed for the baseline, solid for what is compared with it."""
    return (0, (1, 1.8)) if method == BASE else (0, (5, 1.6)) if method == baseline else "-"


def band(methods: Collection[str]) -> float:
    """Opacity of a spread: faint where many would lie on each other."""
    return 0.13 if len(methods) <= CROWD else 0.05


@contextmanager
def house() -> Iterator[None]:
    """matplotlib set to the house style, drawn without a display."""
    import matplotlib

    with matplotlib.rc_context(cast(Any, RC)):
        yield


def panels(count: int, columns: int = 0, width: float = 9.4, height: float = 2.35) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels, in pairs up to four and in threes from five on; spare places stay empty. Inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(columns or (2 if count in (2, 4) else 3), count)
    rows = -(-count // columns)
    engine = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, hspace=0.04)
    figure = Figure(figsize=(width if columns > 1 else width * 0.66, height * rows + 0.1), layout=engine)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


def bottom(axes: Sequence[Any], label: str) -> None:
    """Name the x axis below every panel that has no panel under it."""
    columns = axes[0].get_subplotspec().get_gridspec().ncols if axes else 1
    for axis in axes[-columns:]:
        axis.set_xlabel(label)


def left(axes: Sequence[Any], label: str) -> None:
    """Name the y axis beside the first panel of each row."""
    columns = axes[0].get_subplotspec().get_gridspec().ncols if axes else 1
    for axis in axes[::columns]:
        axis.set_ylabel(label)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.svg (transparent), .png (white) and .pdf, atomically, with no date or version in them."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png", "pdf")]
    with replacing(paths[0]) as temporary:
        figure.savefig(temporary, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    with replacing(paths[1]) as temporary:
        figure.savefig(temporary, format="png", facecolor="white", metadata={"Software": None})
    with replacing(paths[2]) as temporary:
        nothing = dict.fromkeys(("CreationDate", "Creator", "Producer"))
        figure.savefig(temporary, format="pdf", transparent=True, metadata=nothing)
    return paths


def end_labels(axis: Any, labels: Sequence[tuple[float, float, str, str]], size: float = 8.0) -> None:
    """Name each line at its right end, in its colour; labels that would overlap are pushed apart.

    labels: (x, y, text, colour). Widens the x axis to make room.
    """
    if not labels:
        return
    low, high = axis.get_xlim()
    longest = max(len(text) for _, _, text, _ in labels)
    box = axis.get_position()
    inches = box.width * axis.figure.get_figwidth()
    room = min(0.45, (longest * size * 0.62 / 72 + 0.08) / max(inches, 0.5))
    axis.set_xlim(low, high + (high - low) * room / (1 - room))
    floor, top = axis.get_ylim()
    gap = (top - floor) * size * 1.25 / 72 / max(box.height * axis.figure.get_figheight(), 0.5)
    ordered = sorted(labels, key=lambda item: (item[1], item[2]))
    places = apart([y for _, y, _, _ in ordered], gap)
    axis.set_yticks([t for t in axis.get_yticks() if floor <= t <= top])  # none beside the room made for names
    axis.set_ylim(min(floor, places[0] - gap / 2), max(top, places[-1] + gap / 2))
    for place, (x, y, text, colour) in zip(places, ordered, strict=True):
        axis.annotate(
            text, (x, y), xytext=(x + (high - low) * 0.025, place), textcoords="data", va="center",
            color=colour, fontsize=size, annotation_clip=False,
        )  # fmt: skip


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The nearest places (least squares) that keep the order and at least `gap` between neighbours. Ascending in.

    >>> apart([0.0, 0.0, 5.0], 1.0)
    [-0.5, 0.5, 5.0]
    """
    # pool adjacent violators on y_i - i * gap, which must not fall
    blocks: list[list[float]] = []  # [mean, count]
    for i, y in enumerate(places):
        blocks.append([y - i * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + mean * count) / (blocks[-1][1] + count),
                blocks[-1][1] + count,
            ]
    flat = [mean for mean, count in blocks for _ in range(int(count))]
    return [y + i * gap for i, y in enumerate(flat)]

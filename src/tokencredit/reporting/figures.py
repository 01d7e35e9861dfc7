"""Figures of a study, from its aggregate files: SVG for the page, PNG and PDF beside it, bytes that do not change.

Every figure of `names` is always written, so that a rule can declare it; one that has nothing to show says so and
is left out of the report. figures.json holds titles, captions and alternative texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokencredit.analysis.plan import plan
from tokencredit.reporting import plots, style, training_plots
from tokencredit.reporting.results import Results, load
from tokencredit.study.tables import write_json


@dataclass(frozen=True)
class Caption:
    """What stands beside a figure. name: file name without ending; shown: whether it has anything to show."""

    name: str
    kind: str
    model: str
    title: str
    caption: str
    alt: str
    shown: bool


def names(spec: Mapping[str, Any]) -> list[str]:
    """File names, without ending, of every figure of the study whose `aggregate` spec this is."""
    return [f"{kind}_{model}" for model in plan(spec).models for kind in KINDS]


def draw(spec: Mapping[str, Any], root: Path | str, out: Path | str | None = None) -> list[Path]:
    """Draw every figure from {root}/analysis into `out` (default {root}/figures). Returns the files written."""
    out = Path(root) / "figures" if out is None else Path(out)
    results, captions, files = load(spec, Path(root) / "analysis"), [], []
    with style.house():
        for model in results.plan.models:
            for kind, (title, caption, make) in KINDS.items():
                figure, alt = make(results, model)
                shown = figure is not None
                if figure is None:
                    figure = _nothing(alt)
                name = f"{kind}_{model}"
                files += style.save(figure, out / name)
                captions.append(Caption(name, kind, model, title, caption, alt, shown))
    write_json(out / "figures.json", [asdict(c) for c in captions])
    return [*files, out / "figures.json"]


def _nothing(message: str) -> Any:
    figure, (axis,) = style.panels(1, height=1.0)
    axis.set_axis_off()
    axis.text(0.5, 0.5, message, ha="center", va="center", color=style.MUTED)
    return figure


SPREAD = "Lines are means over seeds; the band reaches from the lowest to the highest seed."
# kind: title, caption, what draws it
KINDS: dict[str, tuple[str, str, Callable[[Results, str], plots.Drawn]]] = {
    "difference": (
        "Difference to the baseline",
        "Accuracy at the last step minus the baseline's, paired by seed. The bar is the 95 % t interval over seeds, "
        "the marker its centre, each small tick one seed. A bar that crosses the line at 0 is no evidence.",
        plots.difference,
    ),
    "accuracy": (
        "Accuracy over training",
        f"avg@k at each evaluated checkpoint, starting from the untrained model. {SPREAD} Shaded, where a method has "
        "them: the steps in which perturbed prompts act.",
        plots.over_steps("avg", 100.0, "% correct", "Accuracy"),
    ),
    "passk": (
        "Right at least once in k samples",
        "pass@k at the last step by the unbiased estimator; k on a log scale. Where curves meet, a method answers "
        f"more reliably but solves no more problems. {SPREAD}",
        plots.pass_at_k,
    ),
    "length": (
        "Response length over training",
        f"Mean response length in tokens at each evaluated checkpoint. {SPREAD}",
        plots.over_steps("length_mean", 1.0, "tokens", "Response length"),
    ),
    "budget": (
        "Length and accuracy",
        "Each small mark is one run at the last step, the large one the method's mean. A method that is both longer "
        "and better has not shown that its credit, and not its length, made the difference.",
        plots.length_accuracy,
    ),
    "training": (
        "Training curves",
        f"What the trainer recorded at each optimisation step. {SPREAD}",
        training_plots.training,
    ),
    "credit": (
        "Credit by token",
        "How unevenly each method spreads a response's credit over its tokens: largest weight, Gini coefficient, and "
        f"effective-token ratio (1: all tokens weigh the same). {SPREAD}",
        training_plots.credit(("credit/",), "Credit statistics"),
    ),
    "margin": (
        "Margin and weights",
        "The top-2 margin of the policy and what MCPO makes of it: fixed thresholds meet ever fewer hesitant tokens "
        f"as the policy grows sure of itself. {SPREAD}",
        training_plots.credit(("margin",), "Margin statistics"),
    ),
    "drift": (
        "Drift under semifactual prompts",
        "How far the perturbed prompts move the probabilities of the sampled tokens, and how much credit SCAPO takes "
        f"back for it; recorded while its probes run. {SPREAD}",
        training_plots.credit(("semifactual", "drift"), "Drift statistics"),
    ),
    "clipping": (
        "What the objective holds back",
        "Shares of tokens at which the clip (GSPO: of the whole response), the dual clip or SAPO's gate holds the "
        f"update back. A rollout's first update has ratio 1 everywhere, so that nothing is held back there. {SPREAD}",
        training_plots.credit(("clipped", "dual_clipped", "gated", "future_"), "Clip fractions"),
    ),
    "time": (
        "Time by phase",
        "A training run of each method, mean over its runs: drawing responses, grading, scoring them, probes of "
        "perturbed prompts, updates, handing weights to the sampler. Wall clock, so that other runs give other bars.",
        training_plots.time_by_phase,
    ),
}

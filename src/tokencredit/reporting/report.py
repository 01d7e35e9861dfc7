"""The report: tables, figures, and one HTML page that stands alone, from the aggregate files of a study."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from tokencredit.analysis.plan import Plan
from tokencredit.reporting import (
    contamination,
    figures,
    gain,
    heatmap,
    length,
    overlap,
    page,
    published,
    tables,
    variants,
)
from tokencredit.reporting.answer import answer
from tokencredit.reporting.inline import inline_svg, palette, variable
from tokencredit.reporting.results import Results, load
from tokencredit.reporting.sections import Section, sections
from tokencredit.reporting.style import METHOD_STYLES
from tokencredit.study.config import Study, load_study
from tokencredit.study.grid import specs
from tokencredit.study.tables import write_text

QUESTION = "Which token of a solution deserves the reward?"


def build_report(spec: Mapping[str, Any], root: Path | str, out: Path | str) -> list[Path]:
    """Write tables/, figures/ and report.html into `out`, from {root}/analysis and the records under root.

    spec: the `report` spec of study/grid.py (the study's whole configuration). Returns the files written.
    """
    root, out = Path(root), Path(out)
    config = spec["config"]
    study = load_study(config, "the report's spec")
    expected = specs(study)["aggregate"]
    files = tables.write(expected, root, out / "tables")
    files += figures.draw(expected, root, out / "figures")
    results = load(expected, root / "analysis")
    files += heatmap.write(results.plan, root, out)
    analyses = _from_samples(study, results, root, out / "figures") + sections(config, root, out / "figures")
    more = (variants.section(root, results.plan), published.section(study, results, root, out / "tables"))
    analyses += [s for s in more if s is not None]
    analyses.append(overlap.section(root, results.plan.benchmark_label))
    files += [path for section in analyses for path in section.files]
    text = render(config, study, results, root, out / "figures", analyses)
    return [*files, write_text(out / "report.html", text)]


def _from_samples(study: Study, results: Results, root: Path, drawn: Path) -> list[Section]:
    """The sections on where a gain comes from, on length and on dates, where there is something to compare."""
    notes = [n for n in packaged("published.yaml")["notes"] if n["method"] in results.plan.methods]
    said = {about: [n["text"] for n in notes if n.get("about") == about] for about in ("gain", "length")}
    made = [
        gain.section(results, root, drawn, said["gain"]),
        length.section(results, root, drawn, said["length"], length.arms(study)),
    ]
    made.append(contamination.section(results, study))
    return [s for s in made if s is not None]


def render(
    config: Mapping[str, Any],
    study: Study,
    results: Results,
    root: Path,
    drawn: Path,
    analyses: Sequence[Section] = (),
) -> str:
    """The page as HTML. config: the study as plain JSON; drawn: folder of the figures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    p, analysis = results.plan, root / "analysis"
    colours = palette(dict.fromkeys([*p.methods, *METHOD_STYLES]))  # sections use the house's colours too
    loader = PackageLoader("tokencredit.reporting", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["percent"] = lambda share: f"{share * 100:.1f}"
    examples = page.examples(p, root)
    opened = {e["place"] for e in examples}
    return environment.get_template("report.html.j2").render(
        question=QUESTION,
        study=p.study,
        title=study.title,
        plan=p,
        models=[_model(results, model, opened) for model in p.models],
        legend=[page.method_look(p, m) for m in results.shown_methods()],
        headline=p.benchmark_label(results.headline),
        several=len(p.benchmarks) > 1,
        figures=_figures(drawn, list(colours), Markup),
        sections=[{"title": s.title, "html": Markup(s.html)} for s in analyses if s.html],
        coverage=page.coverage(results, root),
        graders=page.graders(p, analysis),
        timing=page.timing(results, analysis),
        examples=examples,
        heatmaps=Markup(heatmap.summary(p)),  # names of models are checked against a pattern
        provenance=page.provenance(p, root),
        reconstructed=page.for_parts(packaged("reconstructed.yaml"), [study.methods[m] for m in p.methods]),
        same=page.same_with_one_update(study),
        published=page.published(results, packaged("published.yaml")),
        config=yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100),
        script=Markup(_template("report.js")),
        style=Markup(_style(colours)),  # our own style sheet, no text of the study in it
        seeds_of_samples=_samples(p),
    )


def packaged(name: str) -> Any:
    """A YAML file of this package."""
    return yaml.safe_load(resources.files("tokencredit.reporting").joinpath(name).read_text(encoding="utf-8"))


def _model(results: Results, model: str, opened: Container[str]) -> dict[str, Any]:
    return {
        "name": model,
        "answer": answer(results, model),
        "table": page.main_table(results, model, opened),
        "reaches": page.reached(results, model),
    }


def _figures(drawn: Path, colours: list[str], safe: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """model -> kind -> caption and inline SVG, of the figures that have something to show."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for c in json.loads((drawn / "figures.json").read_text(encoding="utf-8")):
        if c["shown"]:
            # inline_svg escapes the alternative text; all else in the file was escaped when it was drawn
            svg = safe(inline_svg(drawn / f"{c['name']}.svg", c["alt"], colours))
            found.setdefault(c["model"], {})[c["kind"]] = {**c, "svg": svg}
    return found


def _template(name: str) -> str:
    return resources.files("tokencredit.reporting").joinpath("templates", name).read_text(encoding="utf-8")


def _style(colours: Mapping[str, str]) -> str:
    sheet = _template("report.css")
    light = " ".join(f"{variable(c)}: {c};" for c in colours)
    dark = " ".join(f"{variable(c)}: {d};" for c, d in colours.items())
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{sheet}"


def _samples(p: Plan) -> str:
    """'16' or '1 to 16': samples per problem over the benchmarks."""
    counts = sorted({b.samples for b in p.benchmarks})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

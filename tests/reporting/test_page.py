"""The report: stands alone, well-formed, honest about gaps and about differences that are none."""

import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml

from tests.reporting.fake_results import METHODS, build, config
from tokencredit.analysis.aggregate import aggregate
from tokencredit.reporting import figures, tables
from tokencredit.reporting.report import QUESTION, build_report, packaged
from tokencredit.reporting.results import load
from tokencredit.study.config import load_study
from tokencredit.study.errors import UserError

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks nesting, and collects ids, references, attributes and the visible text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.tags, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "aria-labelledby"):
                self.links.append((tag, value if value.startswith("#") or name != "aria-labelledby" else "#" + value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def make(folder, values, spoil=None):
    root, specs = build(folder, values)
    if spoil:
        spoil(root)
    aggregate(specs["aggregate"], root, root / "analysis")
    return root, specs, build_report(specs["report"], root, root)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return make(tmp_path_factory.mktemp("full"), config(seeds=2, rollouts=10, samples=4))


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    def spoil(root):
        for path in sorted((root / "eval/tiny/scapo").rglob("step20/*.parquet")):
            path.unlink()
        (root / "eval/tiny/mcpo/seed1/step20/hard.parquet").unlink()

    return make(tmp_path_factory.mktemp("partial"), config(seeds=2, rollouts=10, samples=4), spoil)


def html(made):
    return (made[0] / "report.html").read_text(encoding="utf-8")


def test_page_is_well_formed_and_its_references_meet(full):
    page = Page(html(full))
    assert len(page.ids) == len(set(page.ids))
    wanted = {target[1:] for _, target in page.links if target.startswith("#")}
    assert wanted <= set(page.ids)
    text = html(full)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)


def test_page_fetches_nothing(full):
    text, page = html(full), Page(html(full))
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object"}
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}], "one, and it stands in the page"
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|new Worker|eval\(", text)
    beside = {target for _, target in page.links if not target.startswith("#")}
    assert beside == {"heatmaps_tiny.html"}, "pages that are written with it"
    assert all((full[0] / name).exists() for name in beside)


def test_a_number_of_the_main_table_leads_to_its_responses(full):
    """Every evaluated cell but the mean's: to a place inside the folded responses of its method and benchmark."""
    text, root = html(full), full[0]
    wanted = {f"responses-tiny-{m}-{b}" for m in ("base", *METHODS) for b in ("easy", "hard", "noop")}
    assert set(re.findall(r'<span class="value"><a href="#([^"]+)"', text)) == wanted
    for name in wanted:
        method, benchmark = name.split("-")[2:]
        part = text.split(f'id="{name}"', 1)[1].split("</details>", 1)[0]
        file = re.search(r"All samples: <code>([^<]+)</code>", part)
        assert file
        assert (root / file[1]).exists()
        assert file[1].startswith(f"eval/tiny/{method}/") and file[1].endswith(f"/{benchmark}.parquet")
        assert "the library alone: " in part


def test_page_is_accessible(full):
    page = Page(html(full))
    plots = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(plots) >= 7
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in plots)
    assert dict(page.tags[[t for t, _ in page.tags].index("html")][1])["lang"] == "en"
    scrolled = [a for tag, a in page.tags if a.get("class") == "scroll"]
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in scrolled)
    heads = [a for tag, a in page.tags if tag == "th"]
    assert all("scope" in a for a in heads)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_every_colour_of_a_figure_follows_the_theme(full):
    figures_only = "".join(re.findall(r"<svg.*?</svg>", html(full), flags=re.S))
    assert not re.findall(r"#[0-9a-f]{6}", figures_only)
    for name in set(re.findall(r"var\((--c-[0-9a-f]{6})\)", html(full))):
        assert html(full).count(f"{name}:") == 2  # a light and a dark value


def test_text_of_the_study_is_escaped(full):
    text, page = html(full), Page(html(full))
    assert "<b>the sum</b>" not in text
    assert "<b>the sum</b>" in "".join(page.text)
    assert "Imaginary CPU <2 GHz>" in "".join(page.text)


def test_page_answers_and_names_what_it_stands_on(full):
    said = " ".join(" ".join(Page(html(full)).text).split())
    for part in (
        QUESTION, "95 % interval", "sign-flip", "On other models", "math-verify", "0123456789abcdef", "cd" * 32,
        "Reconstructed rather than published", "seeds 0, 1", "snakemake --cores all",
    ):  # fmt: skip
        assert part in said, part
    assert "is not complete" not in said


def test_missing_cells_are_shown(partial):
    said = " ".join("".join(Page(html(partial)).text).split())
    assert "This grid is not complete." in said
    assert "tiny.scapo.seed0, step 20, Easy sums" in said
    assert "SCAPO cannot be compared with GRPO yet" in said
    assert "1 of 2 seeds" in said
    assert "missing" in said
    rows = (partial[0] / "tables/main_tiny.csv").read_text().splitlines()
    assert "tiny,scapo,SCAPO,macro,20,,,0,2,,,,," in rows
    assert r"\emph{missing}" in (partial[0] / "tables/main_tiny.tex").read_text()


def test_nothing_evaluated_still_makes_a_page(tmp_path):
    values = config(seeds=1, rollouts=10, samples=2)
    from tokencredit.study.grid import specs

    made = specs(load_study(values))
    root = tmp_path / "fake"
    aggregate(made["aggregate"], root, root / "analysis")
    build_report(made["report"], root, root)
    said = "".join(Page((root / "report.html").read_text()).text)
    assert "Nothing has been evaluated" in said
    assert "0 of 3 training runs" in " ".join(said.split())


def test_files_are_the_declared_ones_and_have_stable_bytes(full, tmp_path):
    root, specs, files = full
    spec = specs["aggregate"]
    want = {f"{n}.{e}" for n in figures.names(spec) for e in ("svg", "png", "pdf")} | {"figures.json"}
    drawn = {p.name for p in (root / "figures").iterdir()}
    assert {name for name in drawn if not name.startswith("analysis_")} == want  # those are the sections' own
    assert {p.name for p in (root / "tables").iterdir()} == set(tables.names(spec))
    assert all(p.exists() for p in files)
    again = [*figures.draw(spec, root, tmp_path / "figures"), *tables.write(spec, root, tmp_path / "tables")]
    for path in again:
        assert path.read_bytes() == (root / path.parent.name / path.name).read_bytes(), path.name


def test_table_numbers_come_from_the_aggregate_files(full):
    root, specs, _ = full
    results = load(specs["aggregate"], root / "analysis")
    values = results.values("tiny", "mcpo", 20, "macro")
    entry = next(e for e in tables.entries(results, "tiny")["mcpo"] if e.benchmark == "macro")
    assert entry.mean == pytest.approx(sum(values.values()) / 2)
    assert entry.seeds == entry.of == 2
    text = html(full)
    assert f'<span class="value">{entry.mean * 100:.1f}</span>' in text


def test_figures_json_holds_captions(full):
    rows = json.loads((full[0] / "figures/figures.json").read_text())
    assert {r["kind"] for r in rows} == set(figures.KINDS)
    assert all(r["title"] and r["caption"] and r["alt"] for r in rows)


def test_report_without_aggregate_files_says_what_to_do(full, tmp_path):
    with pytest.raises(UserError, match="aggregate"):
        build_report(full[1]["report"], tmp_path, tmp_path)


def test_packaged_data_name_known_methods_and_both_sides():
    for row in packaged("reconstructed.yaml"):
        assert {"part", "paper", "ours", "why", "parts"} <= set(row)
    data = packaged("published.yaml")
    assert all({"method", "model", "difference", "measure", "source"} <= set(d) for d in data["differences"])


def test_captions_for_snakemake_cover_every_kind(root):
    written = {p.stem for p in (root / "workflow" / "report").glob("*.rst")}
    assert set(figures.KINDS) | {"report", "main_table", "summary", "paired", "timing"} <= written


def test_importing_is_light():
    code = (
        "import sys, tokencredit.reporting.report, tokencredit.analysis.aggregate;"
        "print(sorted({'matplotlib', 'jinja2', 'pandas', 'torch', 'scipy', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_configuration_on_the_page_is_the_one_used(full):
    shown = html(full).split("as it was used</summary><pre>")[1].split("</pre>")[0]
    from html import unescape

    assert yaml.safe_load(unescape(shown)) == full[1]["report"]["config"]

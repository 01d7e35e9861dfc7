# The grid's tables, the report, and the tracking store. Only these see all cells.

# names of what the stages write; nothing heavy
from tokencredit.analysis import comparisons
from tokencredit.reporting import figures, tables

GRID = specs(STUDY)["aggregate"]


rule aggregate:
    input:
        spec=PLACE.spec("aggregate"),
        samples=[PLACE.samples(*e) for e in evaluations(STUDY)],
        training=[
            PLACE.train(cell, f"{table}.parquet") for cell in cells(STUDY) for table in ("metrics", "timings")
        ],
    output:
        [
            report(f"{PLACE.root}/analysis/{name}.csv", caption=f"../report/{name}.rst", category="Analysis")
            for name in (
                "summary",
                "paired",
                "paired_problems",
                "intervals",
                *comparisons.NAMES,
                "grading",
                "curves",
                "timing",
            )
        ],
    log:
        f"{PLACE.root}/logs/aggregate.log",
    conda:
        "../../envs/cpu.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        runtime=PLACE.spec("runtime"),
        out=lambda w, output: Path(output[0]).parent,
    shell:
        "exec tokencredit aggregate --spec {input.spec:q} --out {params.out:q} --runtime {params.runtime:q} --log {log:q}"


rule report:
    input:
        rules.aggregate.output,
        spec=PLACE.spec("report"),
        training=[PLACE.train(cell, "train.json") for cell in cells(STUDY)],
        overlap=PLACE.overlap,
        analyses=[PLACE.analysis(name, cell, step, "record.json") for name, cell, step in analyses(STUDY)],
    output:
        tables=report(
            [f"{PLACE.root}/tables/{name}" for name in tables.names(GRID)],
            caption="../report/main_table.rst",
            category="Tables",
        ),
        figures=[
            report(
                f"{PLACE.root}/figures/{kind}_{model}.svg",
                caption=f"../report/{kind}.rst",
                category="Figures",
                subcategory=model,
                labels={"figure": kind, "model": model},
            )
            for model in STUDY.grid.models
            for kind in figures.KINDS
        ],
        bitmaps=[f"{PLACE.root}/figures/{name}.png" for name in figures.names(GRID)],
        vectors=[f"{PLACE.root}/figures/{name}.pdf" for name in figures.names(GRID)],
        captions=f"{PLACE.root}/figures/figures.json",
        heatmaps=[f"{PLACE.root}/heatmaps_{model}.html" for model in STUDY.grid.models],
        page=report(f"{PLACE.root}/report.html", caption="../report/report.rst", category="Report"),
    log:
        f"{PLACE.root}/logs/report.log",
    conda:
        "../../envs/cpu.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        runtime=PLACE.spec("runtime"),
        out=lambda w, output: Path(output.page).parent,
    shell:
        "exec tokencredit report --spec {input.spec:q} --out {params.out:q} --runtime {params.runtime:q} --log {log:q}"


rule track:
    input:
        rules.report.output.page,
    output:
        f"{PLACE.root}/tracking.json",
    log:
        f"{PLACE.root}/logs/track.log",
    conda:
        "../../envs/cpu.yaml"
    resources:
        mem_mb=1500,
        runtime=30,
    params:
        results=lambda w, output: Path(output[0]).parent,
    shell:
        "exec tokencredit track sync --results {params.results:q} --receipt {output:q} --log {log:q}"

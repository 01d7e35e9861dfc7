# Analyses of one checkpoint without training. One rule per kind, for any model, policy and problem set.

ANALYSED = Cell("{model}", "{method}", "{seed}")


rule semifactuals_bench:
    input:
        spec=PLACE.spec("semifactuals"),
        problems=PLACE.benchmark("{benchmark}"),
        files=STUDY.semifactuals.files,
    output:
        table=PLACE.perturbed("{benchmark}"),
        record=PLACE.perturbed("{benchmark}").replace(".parquet", ".json"),
    log:
        f"{PLACE.root}/logs/semifactuals.{{benchmark}}.log",
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=1500,
        runtime=60,
    params:
        runtime=PLACE.spec("runtime"),
        state=f"{PLACE.root}/state/semifactuals.{{benchmark}}",
    shell:
        "exec tokencredit semifactuals --spec {input.spec:q} --problems {input.problems:q}"
        " --output {output.table:q} --record {output.record:q} --state {params.state:q}"
        " --runtime {params.runtime:q} --gpus {resources.gpu} --cell {wildcards.benchmark} --log {log:q}"


rule panel:
    input:
        spec=PLACE.spec("analysis.{analysis}.{model}"),
        checkpoint=lambda w: PLACE.checkpoint(Cell(w.model, w.method, int(w.seed)), int(w.step)),
        problems=lambda w: PLACE.problem_set(STUDY.analyses[w.analysis].problems),
        semifactuals=lambda w: PLACE.perturbed(STUDY.analyses[w.analysis].problems),
    output:
        [PLACE.analysis("{analysis}", ANALYSED, "{step}", f"{t}.parquet") for t in ANALYSES["panel"].tables],
        record=PLACE.analysis("{analysis}", ANALYSED, "{step}", "record.json"),
    log:
        f"{PLACE.root}/logs/analyse.{{analysis}}.{ANALYSED.id}.step{{step}}.log",
    wildcard_constraints:
        analysis=analysis_names(STUDY, "panel"),
    priority: 5
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=lambda w: memory_mb(STUDY, w.model, 3000),
        runtime=120,
        gpu=lambda w: GPU * gpus(STUDY, w.model),
    params:
        runtime=PLACE.spec("runtime"),
        out=lambda w, output: Path(output.record).parent,
        state=f"{PLACE.root}/state/analyse.{{analysis}}.{ANALYSED.id}.step{{step}}",
    shell:
        "exec tokencredit analyse --spec {input.spec:q} --checkpoint {input.checkpoint:q} --problems {input.problems:q}"
        " --semifactuals {input.semifactuals:q} --out {params.out:q} --state {params.state:q}"
        " --runtime {params.runtime:q} --gpus {resources.gpu}"
        " --cell {wildcards.model}.{wildcards.method}.seed{wildcards.seed}.step{wildcards.step}.{wildcards.analysis}"
        " --log {log:q}"


use rule panel as filtered with:
    output:
        [PLACE.analysis("{analysis}", ANALYSED, "{step}", f"{t}.parquet") for t in ANALYSES["filtered"].tables],
        record=PLACE.analysis("{analysis}", ANALYSED, "{step}", "record.json"),
    wildcard_constraints:
        analysis=analysis_names(STUDY, "filtered"),


use rule panel as fidelity with:
    output:
        [PLACE.analysis("{analysis}", ANALYSED, "{step}", f"{t}.parquet") for t in ANALYSES["fidelity"].tables],
        record=PLACE.analysis("{analysis}", ANALYSED, "{step}", "record.json"),
    wildcard_constraints:
        analysis=analysis_names(STUDY, "fidelity"),


rule completion:
    input:
        spec=PLACE.spec("analysis.{analysis}.{model}"),
        checkpoint=lambda w: PLACE.checkpoint(Cell(w.model, w.method, int(w.seed)), int(w.step)),
        problems=lambda w: [PLACE.problem_set(name) for name in STUDY.analyses[w.analysis].sets],
    output:
        [PLACE.analysis("{analysis}", ANALYSED, "{step}", f"{t}.parquet") for t in ANALYSES["completion"].tables],
        record=PLACE.analysis("{analysis}", ANALYSED, "{step}", "record.json"),
    log:
        f"{PLACE.root}/logs/analyse.{{analysis}}.{ANALYSED.id}.step{{step}}.log",
    wildcard_constraints:
        analysis=analysis_names(STUDY, "completion"),
    priority: 5
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=lambda w: memory_mb(STUDY, w.model, 3000),
        runtime=120,
        gpu=lambda w: GPU * gpus(STUDY, w.model),
    params:
        runtime=PLACE.spec("runtime"),
        out=lambda w, output: Path(output.record).parent,
        state=f"{PLACE.root}/state/analyse.{{analysis}}.{ANALYSED.id}.step{{step}}",
    shell:
        "exec tokencredit analyse --spec {input.spec:q} --checkpoint {input.checkpoint:q} --problems {input.problems:q}"
        " --out {params.out:q} --state {params.state:q} --runtime {params.runtime:q} --gpus {resources.gpu}"
        " --cell {wildcards.model}.{wildcards.method}.seed{wildcards.seed}.step{wildcards.step}.{wildcards.analysis}"
        " --log {log:q}"

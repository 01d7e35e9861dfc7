# Problems, where they overlap, and their semifactual perturbations. Local files are inputs, so that a changed file is
# seen. With overlap.drop, the training set is drawn from `candidates` that are no problem of a benchmark, and so
# depends on those benchmarks; otherwise overlaps are only reported, and a new benchmark trains nothing.

import shlex

from tokencredit.study.grid import dropped_against

DROPS = STUDY.overlap.drop


rule problems_train:
    input:
        spec=PLACE.spec("problems.train"),
        files=[] if DROPS else LOCAL_FILES["train"],
        candidates=PLACE.candidates if DROPS else [],
        benchmarks=[PLACE.benchmark(name) for name in dropped_against(STUDY)],
    output:
        table=PLACE.problems,
        record=PLACE.problems.replace(".parquet", ".json"),
    log:
        f"{PLACE.root}/logs/problems.train.log",
    priority: 100
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=1500,
        runtime=30,
    params:
        runtime=PLACE.spec("runtime"),
        drawn=lambda w, input: (
            "--candidates {} --benchmarks {}".format(
                shlex.quote(str(input.candidates)), shlex.join(input.benchmarks)
            )
            if DROPS
            else ""
        ),
    shell:
        "exec tokencredit problems --spec {input.spec:q} {params.drawn}"
        " --output {output.table:q} --record {output.record:q}"
        " --runtime {params.runtime:q} --cell train --log {log:q}"


if DROPS:

    rule problems_candidates:
        input:
            spec=PLACE.spec("problems.candidates"),
            files=LOCAL_FILES["train"],
        output:
            table=PLACE.candidates,
            record=PLACE.candidates.replace(".parquet", ".json"),
        log:
            f"{PLACE.root}/logs/problems.candidates.log",
        priority: 100
        conda:
            "../../envs/cpu.yaml"
        threads: STUDY.runtime.threads
        resources:
            mem_mb=1500,
            runtime=30,
        params:
            runtime=PLACE.spec("runtime"),
        shell:
            "exec tokencredit problems --spec {input.spec:q} --output {output.table:q} --record {output.record:q}"
            " --runtime {params.runtime:q} --cell candidates --log {log:q}"


rule problems_bench:
    input:
        spec=PLACE.spec("problems.{benchmark}"),
        files=lambda w: LOCAL_FILES[w.benchmark],
    output:
        table=PLACE.benchmark("{benchmark}"),
        record=PLACE.benchmark("{benchmark}").replace(".parquet", ".json"),
    log:
        f"{PLACE.root}/logs/problems.{{benchmark}}.log",
    priority: 60
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=1500,
        runtime=30,
    params:
        runtime=PLACE.spec("runtime"),
    shell:
        "exec tokencredit problems --spec {input.spec:q} --output {output.table:q} --record {output.record:q}"
        " --runtime {params.runtime:q} --cell {wildcards.benchmark} --log {log:q}"


rule overlap:
    input:
        spec=PLACE.spec("overlap"),
        problems=PLACE.candidates if DROPS else PLACE.problems,
        benchmarks=[PLACE.benchmark(name) for name in STUDY.grid.benchmarks],
    output:
        table=PLACE.overlap,
        record=PLACE.overlap.replace(".parquet", ".json"),
    log:
        f"{PLACE.root}/logs/overlap.log",
    priority: 5
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=1500,
        runtime=30,
    params:
        runtime=PLACE.spec("runtime"),
    shell:
        "exec tokencredit overlap --spec {input.spec:q} --problems {input.problems:q} --benchmarks {input.benchmarks:q}"
        " --output {output.table:q} --record {output.record:q}"
        " --runtime {params.runtime:q} --log {log:q}"


rule semifactuals:
    input:
        spec=PLACE.spec("semifactuals"),
        problems=PLACE.problems,
        files=STUDY.semifactuals.files,
    output:
        table=PLACE.semifactuals,
        record=PLACE.semifactuals.replace(".parquet", ".json"),
    log:
        f"{PLACE.root}/logs/semifactuals.log",
    priority: 95
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=1500,
        runtime=60,
    params:
        runtime=PLACE.spec("runtime"),
        state=f"{PLACE.root}/state/semifactuals",
    shell:
        "exec tokencredit semifactuals --spec {input.spec:q} --problems {input.problems:q}"
        " --output {output.table:q} --record {output.record:q} --state {params.state:q}"
        " --runtime {params.runtime:q} --log {log:q}"

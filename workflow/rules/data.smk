# Problems, and their semifactual perturbations. Local files are inputs, so that a changed file is seen.


rule problems_train:
    input:
        spec=PLACE.spec("problems.train"),
        files=LOCAL_FILES["train"],
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
    shell:
        "exec tokencredit problems --spec {input.spec:q} --output {output.table:q} --record {output.record:q}"
        " --runtime {params.runtime:q} --cell train --log {log:q}"


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


rule semifactuals:
    input:
        spec=PLACE.spec("semifactuals"),
        problems=PLACE.problems,
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
    shell:
        "exec tokencredit semifactuals --spec {input.spec:q} --problems {input.problems:q}"
        " --output {output.table:q} --record {output.record:q}"
        " --runtime {params.runtime:q} --log {log:q}"

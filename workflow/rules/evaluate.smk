# One checkpoint on one benchmark. The untrained model is method `base`, seed 0, step 0.


rule evaluate:
    input:
        spec=PLACE.spec("evaluate.{benchmark}"),
        checkpoint=lambda w: PLACE.checkpoint(Cell(w.model, w.method, int(w.seed)), int(w.step)),
        problems=PLACE.benchmark("{benchmark}"),
    output:
        table=PLACE.samples(CELL, "{step}", "{benchmark}"),
        record=PLACE.samples(CELL, "{step}", "{benchmark}").replace(".parquet", ".json"),
    log:
        f"{PLACE.root}/logs/evaluate.{CELL.id}.step{{step}}.{{benchmark}}.log",
    priority: 10
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads * STUDY.runtime.copies
    resources:
        mem_mb=lambda w: memory_mb(STUDY, w.model, 3000),
        runtime=120,
        gpu=lambda w: GPU * gpus(STUDY, w.model, STUDY.runtime.copies),
    params:
        runtime=PLACE.spec("runtime"),
        state=f"{PLACE.root}/state/evaluate.{CELL.id}.step{{step}}.{{benchmark}}",
    shell:
        "exec tokencredit evaluate --spec {input.spec:q} --checkpoint {input.checkpoint:q}"
        " --problems {input.problems:q} --output {output.table:q} --record {output.record:q}"
        " --state {params.state:q} --runtime {params.runtime:q} --gpus {resources.gpu}"
        " --cell {wildcards.model}.{wildcards.method}.seed{wildcards.seed}.step{wildcards.step}.{wildcards.benchmark}"
        " --log {log:q}"

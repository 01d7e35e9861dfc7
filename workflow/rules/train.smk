# Base models, and one training run per cell. Checkpoints for resuming lie in results/STUDY/state, which is not
# declared: Snakemake deletes the outputs of a job that failed, and a killed job must find its checkpoints again.


rule base:
    input:
        spec=PLACE.spec("base.{model}"),
    output:
        record=PLACE.base("{model}"),
    log:
        f"{PLACE.root}/logs/base.{{model}}.log",
    priority: 90
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=lambda w: memory_mb(STUDY, w.model, 3000),
        runtime=120,
        gpu=GPU,
    params:
        runtime=PLACE.spec("runtime"),
        state=f"{PLACE.root}/state/base.{{model}}",
    shell:
        "exec tokencredit base --spec {input.spec:q} --record {output.record:q} --state {params.state:q}"
        " --runtime {params.runtime:q} --gpus {resources.gpu} --cell {wildcards.model} --log {log:q}"


rule train:
    input:
        spec=PLACE.spec(f"train.{CELL.id}"),
        base=PLACE.base("{model}"),
        problems=PLACE.problems,
        semifactuals=lambda w: PLACE.semifactuals if needs_semifactuals(STUDY, w.method) else [],
        lengths=lambda w: length_metrics(STUDY, Cell(w.model, w.method, int(w.seed))),
    output:
        PLACE.train(CELL, "metrics.parquet"),
        PLACE.train(CELL, "rollouts.parquet"),
        PLACE.train(CELL, "tokens.parquet"),
        PLACE.train(CELL, "timings.parquet"),
        [PLACE.train(CELL, f"step{step}/checkpoint.json") for step in STUDY.training.evaluated_steps],
        record=PLACE.train(CELL, "train.json"),
    log:
        f"{PLACE.root}/logs/train.{CELL.id}.log",
    priority: 50
    conda:
        "../../envs/cpu.yaml"
    threads: STUDY.runtime.threads
    resources:
        mem_mb=lambda w: memory_mb(STUDY, w.model, 4000),
        runtime=240,
        gpu=lambda w: GPU * gpus(STUDY, w.model),
    params:
        runtime=PLACE.spec("runtime"),
        out=PLACE.train(CELL, ""),
        state=f"{PLACE.root}/state/train.{CELL.id}",
        semifactuals=lambda w, input: f"--semifactuals '{input.semifactuals}'" if input.semifactuals else "",
        lengths=lambda w, input: f"--lengths '{input.lengths}'" if input.lengths else "",
    shell:
        "exec tokencredit train --spec {input.spec:q} --base {input.base:q} --problems {input.problems:q}"
        " {params.semifactuals} {params.lengths} --out {params.out:q} --state {params.state:q}"
        " --runtime {params.runtime:q} --gpus {resources.gpu}"
        " --cell {wildcards.model}.{wildcards.method}.seed{wildcards.seed} --log {log:q}"

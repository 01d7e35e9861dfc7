# Entry: read and validate the study, write its specs, include the rules. Nothing is computed here.
#
#   snakemake --cores all                                          the embedded study, config.yaml
#   snakemake --cores all --configfile workflow/studies/NAME.yaml  another one, laid over config.yaml
#
# The Snakefile is evaluated again in every remote job: no heavy import, network or tracking at parse time.

import os
import shutil
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.27")

try:
    from tokencredit.grid import devices, runs
    from tokencredit.study import (
        Cell,
        UserError,
        analyses,
        cells,
        check_files,
        evaluations,
        layout,
        load_study,
        specs,
        write_specs,
    )
    from tokencredit.study.analyses import ANALYSES
    from tokencredit.study.files import overlay, read_yaml
    from tokencredit.study.grid import (
        analysis_names,
        gpus,
        length_metrics,
        local_inputs,
        memory_mb,
        needs_semifactuals,
    )
except ModuleNotFoundError as error:
    raise WorkflowError(
        f"{error.name} is not installed in this environment: call `make env`, then `.venv/bin/snakemake --cores all`"
    ) from None

# `config` holds what --configfile and --config say. They are laid over config.yaml here rather than by the
# `configfile:` directive, which would mix the keys of two kinds of source (a file and a synthetic set).
try:
    STUDY = load_study(overlay(read_yaml(Path(workflow.basedir) / "config.yaml"), config), where="the study")
    check_files(STUDY)
    # The main process writes the specs; its jobs work with what it wrote, whatever is edited meanwhile.
    PLACE = write_specs(STUDY) if workflow.is_main_process else layout(STUDY)
except (UserError, OSError) as error:
    raise WorkflowError(str(error)) from None

# `.venv/bin/snakemake` works without activating the environment.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))

# A GPU job takes whole GPUs; as many run at a time as there are here, unless --resources gpu=N says otherwise.
DEVICE = STUDY.runtime.device
GPU = int(DEVICE == "cuda" or (DEVICE == "auto" and shutil.which("nvidia-smi") is not None))
if workflow.is_main_process:
    workflow.global_resources.setdefault("gpu", max(1, len(devices.visible()) if GPU else 0))
    runs.name_run()
    runs.unlimited(workflow.scheduling_settings)
elif runs.superseded(PLACE.root):
    raise WorkflowError("this job waited while its Snakemake was killed and another one began: nothing is touched")


onstart:
    if not os.access(PLACE.root, os.W_OK):
        raise WorkflowError(
            f"{PLACE.root}: cannot be written (mounted read-only, or another user's); nothing was changed. "
            "Make it writable and run again, or name another folder under `results` in the study"
        )
    runs.begin(PLACE.root)


CELL = Cell("{model}", "{method}", "{seed}")  # paths with wildcards instead of names
LOCAL_FILES = local_inputs(STUDY)


wildcard_constraints:
    model="[a-z0-9][a-z0-9_-]*",
    method="[a-z0-9][a-z0-9_-]*",
    benchmark="[a-z0-9][a-z0-9_-]*",
    analysis="[a-z0-9][a-z0-9_-]*",
    seed=r"\d+",
    step=r"\d+",


localrules:
    all,
    aggregate,
    report,
    track,


include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/analyses.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        f"{PLACE.root}/report.html",
        f"{PLACE.root}/tracking.json",

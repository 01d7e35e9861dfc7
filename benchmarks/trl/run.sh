#!/usr/bin/env bash
# Parity with TRL 1.16 first, then speed against it, under glibc's default allocator and under one that keeps memory
# (why: speed.py). Makes an environment of its own beside this file.
#
#     benchmarks/trl/run.sh [arguments of speed.py]
set -euo pipefail
cd "$(dirname "$0")"
if [ ! -e .venv/ready ]; then
    "${PYTHON:-python3.11}" -m venv .venv
    .venv/bin/pip install --quiet --requirement requirements.txt
    .venv/bin/pip install --quiet --no-deps --editable ../..
    touch .venv/ready
fi
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
.venv/bin/python parity.py
.venv/bin/python speed.py "$@"
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=1000000000
.venv/bin/python speed.py "$@"

# Stands in for `tokencredit` where only the workflow is tested: writes what the rule declares, as text that depends
# on the contents of the files named on the command line and on nothing else.
import hashlib
import json
import os
import sys
from pathlib import Path

stage, words = sys.argv[1], sys.argv[2:]
words = words[1:] if stage == "track" else words
args, given, key = {}, [], ""
for word in words:  # an option may have several values
    if word.startswith("--"):
        key = word
        continue
    args[key] = word
    if os.path.isfile(word) and key not in ("--runtime", "--log"):
        given.append(word)
text = hashlib.sha256(b"".join(Path(path).read_bytes() for path in given)).hexdigest()
root = os.path.dirname(os.path.dirname(args["--spec"])) if "--spec" in args else args["--results"]


def specification(name):
    with open(os.path.join(root, "cells", name + ".json")) as handle:
        return json.load(handle)


outputs = [args[k] for k in ("--output", "--record", "--receipt") if k in args]
if stage == "train":
    training = specification("train." + args["--cell"])["training"]
    steps = {*training["checkpoints"], training["rollouts"] * training["updates"]}
    names = ["metrics.parquet", "rollouts.parquet", "tokens.parquet", "timings.parquet", "train.json"]
    outputs = [os.path.join(args["--out"], n) for n in [*names, *(f"step{s}/checkpoint.json" for s in steps)]]
elif stage == "analyse":
    outputs = [os.path.join(args["--out"], n) for n in ("panel_tokens.parquet", "record.json")]
elif stage == "aggregate":
    names = ["summary", "paired", "paired_problems", "intervals", "grading", "curves", "timing"]
    names += ["strata", "pass_differences", "budgets", "equal_tokens", "equal_length", "length_models"]
    outputs = [os.path.join(args["--out"], f"{n}.csv") for n in names]
elif stage == "report":
    models = specification("aggregate")["grid"]["models"]
    kinds = os.environ["FIGURES"].split()
    names = [f"figures/{k}_{m}.{e}" for k in kinds for m in models for e in ("svg", "png", "pdf")]
    names += [f"tables/{k}_{m}.{e}" for k in ("main", "published") for m in models for e in ("csv", "tex")]
    names += ["figures/figures.json", "report.html"]
    names += [f"heatmaps_{m}.html" for m in models]
    outputs = [os.path.join(args["--out"], n) for n in names]
for path in outputs:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as handle:
        handle.write(text)

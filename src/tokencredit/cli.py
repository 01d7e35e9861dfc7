"""The command line: one thin sub-command per stage, each a function of files.

Exit codes: 0 done; 1 a fault of ours (traceback); 2 something the user can mend (one message); 85 saved and asked
to leave, run it again to go on. Nothing heavy is imported before the command is known.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit import tools
from tokencredit.study.errors import UserError
from tokencredit.tools import read_object

if TYPE_CHECKING:
    from tokencredit.study.config import Runtime

Json = dict[str, Any]
ON_DEVICE = ("base", "train", "evaluate", "analyse")  # stages that may use a GPU
DESCRIPTION = "Which token of a solution deserves the reward? Stages and tools of the tokencredit pipeline."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; GoOn (85) and argparse's own exits pass through."""
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
    except UserError as error:
        print(f"tokencredit {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has read enough
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokencredit", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    def stage(name: str, run: Callable[..., None], text: str, *paths: str) -> argparse.ArgumentParser:
        made = command(name, lambda args: _stage(args, run), text)
        made.add_argument("--spec", type=Path, required=True, help="resolved spec, results/STUDY/cells/*.json")
        for path in paths:
            made.add_argument(f"--{path}", type=Path, required=True)
        made.add_argument("--runtime", type=Path, help="how to work (threads, device, saving): cells/runtime.json")
        made.add_argument("--results", type=Path, help="results/STUDY (default: where the spec's `cells` folder is)")
        made.add_argument("--cell", default="", help="name of the cell in the event log")
        made.add_argument("--log", type=Path, help="also write progress and messages to this file")
        if name in ON_DEVICE:
            made.add_argument("--gpus", type=_at_least_one, default=1, help="GPUs to hold, where there are several")
        return made

    problems = stage("problems", _problems, "Build one set of problems.", "output", "record")
    problems.add_argument("--candidates", type=Path, help="draw from this table, without problems of the benchmarks")
    problems.add_argument("--benchmarks", type=Path, nargs="*", default=[], help="tables named as their benchmarks")
    overlap = stage("overlap", _overlap, "Find problems that stand in two sets.", "problems", "output", "record")
    overlap.add_argument("--benchmarks", type=Path, nargs="+", required=True, help="tables named as their benchmarks")
    perturb = stage("semifactuals", _semifactuals, "Perturb problems.", "problems", "output", "record")
    perturb.add_argument("--state", type=Path, help="keeps a language model's replies (default: beside the record)")
    stage("base", _base, "Make or fetch a base model.", "record", "state")
    train = stage("train", _train, "Train one cell.", "base", "problems", "out", "state")
    train.add_argument("--semifactuals", type=Path)
    train.add_argument("--lengths", type=Path, help="metrics of the run whose response lengths this one is held to")
    stage(
        "evaluate", _evaluate, "Evaluate one checkpoint on one benchmark.",
        "checkpoint", "problems", "output", "record", "state",
    )  # fmt: skip
    analyse = stage("analyse", _analyse, "Look into one checkpoint without training it.", "checkpoint", "out", "state")
    analyse.add_argument("--problems", type=Path, nargs="+", required=True, help="tables named as their sets")
    analyse.add_argument("--semifactuals", type=Path, help="of the problems, for the kinds that read them")
    stage("aggregate", _aggregate, "Turn samples and metrics into the study's tables.", "out")
    stage("report", _report, "Tables, figures and the report page.", "out")

    check = command("check", tools.check, "Validate a study and print its grid; runs nothing.")
    check.add_argument("file", nargs="*", type=Path, help="study files, laid over config.yaml in turn")
    check.add_argument("--base", type=Path, default=Path("config.yaml"), help="the reference settings")

    plan = command("plan", tools.plan, "What a study will cost: GPU memory, tokens, FLOPs, hours, disk; runs nothing.")
    plan.add_argument("file", nargs="*", type=Path, help="study files, laid over config.yaml in turn")
    plan.add_argument("--base", type=Path, default=Path("config.yaml"), help="the reference settings")
    plan.add_argument("--gpu", default="H200", help="H200, H100, A100, A100-40, L40S, L4, 4090, or its memory: 24GB")
    plan.add_argument("--mfu", type=float, default=0.35, help="share of its peak that passes reach (%(default)s, ours)")
    plan.add_argument("--decode-mfu", type=float, default=0.1, help="the same of sampling (%(default)s, ours)")
    plan.add_argument("--length", type=int, help="response tokens in the mean (default: the limit, an upper bound)")
    plan.add_argument("--json", action="store_true", help="all numbers, as JSON")

    status = command("status", tools.status, "What of each study is done, running, failed, stale or missing, and why.")
    status.add_argument("file", nargs="*", type=Path, help="study files, each laid over config.yaml")
    status.add_argument("--base", type=Path, default=Path("config.yaml"), help="the reference settings")
    status.add_argument("--html", type=Path, help="also write a page with the grids")
    status.add_argument("--all", action="store_true", help="name every job that is not done")

    doctor = command(
        "doctor", tools.doctor, "What this SLURM cluster needs: lines for the profile, and requests too large."
    )
    doctor.add_argument("--profile", type=Path, default=Path("workflow/profiles/slurm"), help="the profile to check")

    track = command("track", tools.track, "Bring a study's event logs into its MLflow store.")
    track.add_argument("action", choices=["sync"])
    track.add_argument("--results", type=Path, required=True, help="results/STUDY")
    track.add_argument("--receipt", type=Path, help="write what was done here; a store that is down is no failure")
    track.add_argument("--log", type=Path)

    benchmarks = command(
        "benchmarks", tools.benchmarks, "List the registry of public sets, and which are to be had here."
    )
    benchmarks.add_argument("names", nargs="*", help="sets to check (default: all)")
    benchmarks.add_argument("--folder", default="${TOKENCREDIT_SHARED}/data", help="of files (default: %(default)s)")
    benchmarks.add_argument("--check", action="store_true", help="load what lies in the folder, and check it")

    docs = command("docs", tools.docs, "Write the parts of README and docs/ that are made from the code.")
    docs.add_argument("--root", type=Path, default=Path(), help="folder of the repository")

    serve = command("serve", tools.serve, "An OpenAI-compatible server of a study's checkpoints, or of a model folder.")
    serve.add_argument("where", type=Path, help="results/STUDY, or a from_pretrained folder")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--engine", choices=["auto", "fast", "hf", "vllm"], default="auto")
    serve.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    serve.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: as the study says, or as stored")

    credit = command("credit", tools.credit, "Work out a method on a batch written by hand: credit, losses, gradient.")
    credit.add_argument("method", help="a method of the study")
    credit.add_argument("batch", help="JSON file: old, new, mask, rewards, groups, ...; - for standard input")
    credit.add_argument("--study", type=Path, nargs="*", default=[], help="study files, laid over config.yaml in turn")
    credit.add_argument("--base", type=Path, default=Path("config.yaml"), help="the reference settings")
    credit.add_argument(
        "--param", action="append", default=[], metavar="KEY=VALUE",
        help="change a setting: objective.low=0.1, advantage.ddof=0, or of a credit by its kind: margin.strength=0.5",
    )  # fmt: skip

    grade = command("grade", tools.grade, "Grade a JSONL file of cases (gold, response, kind); one verdict a line.")
    grade.add_argument("file", help="cases, or - for standard input")
    grade.add_argument("--output", type=Path, help="JSONL file for the verdicts (default: standard output)")
    grade.add_argument("--workers", type=int, default=2, help="worker processes")
    grade.add_argument("--timeout", type=float, default=5.0, help="seconds granted to one case")
    grade.add_argument("--no-library", action="store_true", help="leave out math-verify's own verdict")
    return parser


def _at_least_one(text: str) -> int:
    """Snakemake's count of a rule's GPUs; 0, on a machine without, holds none whatever is said here."""
    return max(1, int(text))


# --- stages -----------------------------------------------------------------------------------------------------


def _stage(args: argparse.Namespace, work: Callable[..., None]) -> None:
    """Run a stage with its threads set, its lines shown and logged, and its event log kept."""
    from tokencredit.console import Console
    from tokencredit.grid.devices import hold
    from tokencredit.grid.presence import at_work
    from tokencredit.grid.slurm import Stay
    from tokencredit.study.base import parse
    from tokencredit.study.config import Runtime
    from tokencredit.study.grid import spec_hash
    from tokencredit.tracking import EventLog
    from tokencredit.tracking.live import Live

    spec = read_object(args.spec)
    if args.results is None and args.spec.parent.name == "cells":
        args.results = args.spec.parent.parent
    runtime = parse(Runtime, read_object(args.runtime) if args.runtime else {}, str(args.runtime))
    _environment(runtime.threads)
    job = f"{args.command}.{args.cell or 'all'}"
    with ExitStack() as stack:
        if args.log:
            stack.enter_context(Console(args.log, f"{args.command} {args.cell}".strip()))
        stack.enter_context(_messages())
        stay = stack.enter_context(Stay(runtime.wall_minutes, getattr(args, "state", None)))
        runtime = runtime.model_copy(update={"wall_minutes": stay.minutes})
        events = args.results / "events" / f"{job}.jsonl" if args.results else None
        try:
            with ExitStack() as inner:
                if args.results:
                    inner.enter_context(at_work(args.results, job))
                if args.command in ON_DEVICE:
                    inner.enter_context(hold(runtime.device, args.gpus))
                inner.enter_context(Live(args.results, events))
                log = inner.enter_context(EventLog(events, _tags(args, spec_hash(spec))))
                log.params({k: v for k, v in spec.items() if k != "stage"})
                work(args, spec, runtime, log)
        except UserError as error:  # shown here and not in main, so that it stands in the job's log too
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None


@contextmanager
def _messages() -> Iterator[None]:
    """The package's log messages go where sys.stderr goes now."""
    logger, handler = logging.getLogger("tokencredit"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _environment(threads: int) -> None:
    """Set before torch is imported: two OpenMP threads on a busy machine run ten times slower than one."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    # peft and transformers warn about each other
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")


def _tags(args: argparse.Namespace, digest: str) -> dict[str, str]:
    if not args.results:
        return {}
    from tokencredit.study.provenance import collect

    tags = {"study": args.results.name, "stage": args.command, "cell": args.cell, "spec_hash": digest}
    if args.command in ("base", "train", "evaluate", "analyse"):
        names = ("model", "method", "seed", "step", "benchmark" if args.command == "evaluate" else "analysis")
        parts = dict(zip(names, args.cell.split("."), strict=False))
        tags |= {k: v.removeprefix(k) if k in ("seed", "step") else v for k, v in parts.items()}
    origin = collect()
    return tags | {k: str(origin.get(k, "")) for k in ("commit", "dirty", "code", "lock")}


def _recorded(log: Any, record: Path, *files: Path) -> None:
    """Log a stage's record: its seconds and counts as metrics, itself and the files as artifacts."""
    from tokencredit.tracking import flatten

    content = read_object(record)
    for part in ("seconds", "counts", "grader"):  # a slash makes a section of the run's page
        numbers = flatten({part: content.get(part, {})})
        log.metrics({k.replace(".", "/", 1): v for k, v in numbers.items() if isinstance(v, int | float)})
    for path in (record, *files):
        log.artifact(path)


def _problems(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.problems.stages import build_problems

    drawn = {"candidates": args.candidates, "benchmarks": args.benchmarks} if args.candidates else {}
    build_problems(spec, args.output, args.record, **drawn)
    _recorded(log, args.record, args.output)


def _overlap(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.problems.stages import build_overlap

    build_overlap(spec, args.problems, args.benchmarks, args.output, args.record)
    _recorded(log, args.record, args.output)


def _semifactuals(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.problems.stages import build_semifactuals

    build_semifactuals(spec, args.problems, args.output, args.record, args.state)
    _recorded(log, args.record, args.output)


def _base(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.model.base import build_base

    build_base(spec, args.record, args.state)
    _recorded(log, args.record)
    _weights(log, args.record)


def _train(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.training.run import train

    train(spec, args.base, args.problems, args.semifactuals, args.out, args.state, runtime, log, args.lengths)
    _recorded(log, args.out / "train.json", *sorted(args.out.glob("*.parquet")))
    for checkpoint in sorted(args.out.glob("step*/checkpoint.json")):
        _weights(log, checkpoint, checkpoint.parent.name)


def _evaluate(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.evaluation.run import evaluate

    evaluate(spec, args.checkpoint, args.problems, args.output, args.record, args.state, runtime, log)
    _recorded(log, args.record, args.output)


def _analyse(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.analysis import run

    run(spec, args.checkpoint, args.problems, args.semifactuals, args.out, args.state, runtime, log)
    _recorded(log, args.out / "record.json", *sorted(args.out.glob("*.parquet")))


def _aggregate(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.analysis.aggregate import aggregate

    aggregate(spec, _root(args), args.out)
    for path in sorted(args.out.glob("*.csv")):
        log.artifact(path)


def _report(args: argparse.Namespace, spec: Json, runtime: Runtime, log: Any) -> None:
    from tokencredit.reporting.report import build_report

    for path in build_report(spec, _root(args), args.out):
        log.artifact(path)


def _root(args: argparse.Namespace) -> Path:
    if args.results is None:
        raise UserError("--results is missing, and the spec does not lie in a `cells` folder")
    return args.results


def _weights(log: Any, record: Path, folder: str = "") -> None:
    """Name weights by path and digest; they are never copied into the store."""
    for name in read_object(record).get("files", {}):
        log.artifact(record.parent / name, str(Path(folder) / name), link=True)


if __name__ == "__main__":
    sys.exit(main())

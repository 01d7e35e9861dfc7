"""Commands that are no stage of the workflow: from check and plan to serve, credit and grade."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from tokencredit.study.errors import UserError


def check(args: argparse.Namespace) -> None:
    from tokencredit.study import cells, check_files, evaluations, layout, load_study

    study = load_study(*settings_of(args.base, args.file))
    check_files(study)
    grid = study.grid
    print(f"{study.study}: {study.title}".rstrip(": "))
    for name in ("models", "methods", "seeds", "benchmarks", "analyses"):
        print(f"  {name:<11}{' '.join(str(v) for v in getattr(grid, name))}".rstrip())
    print(f"  {'training':<11}{len(cells(study))} runs of {study.training.steps} steps")
    print(f"  {'evaluation':<11}{sum(1 for _ in evaluations(study))} of a checkpoint on a benchmark")
    print(f"  {'results':<11}{layout(study).root}")


def plan(args: argparse.Namespace) -> None:
    from tokencredit.plan import page
    from tokencredit.plan.gpus import gpu
    from tokencredit.study import load_study

    device = gpu(args.gpu)
    for name in ("mfu", "decode_mfu"):
        if not 0 < getattr(args, name) <= 1:
            raise UserError(f"--{name.replace('_', '-')}: a share above 0, at most 1 (got {getattr(args, name)})")
    if args.length is not None and args.length < 1:
        raise UserError(f"--length: at least 1 token (got {args.length})")
    settings, where = settings_of(args.base, args.file)
    made = page.plan(load_study(settings, where), device, page.Rates(args.mfu, args.decode_mfu), args.length, where)
    if args.json:
        print(json.dumps(page.values(made), indent=1, allow_nan=False))
    else:
        print("\n".join(page.text(made)))
    if lost := page.verdict(made):
        raise UserError("the study does not fit:\n" + "\n".join(f"  - {line}" for line in lost))


def status(args: argparse.Namespace) -> None:
    from tokencredit.grid.status import look
    from tokencredit.grid.status_page import page, text
    from tokencredit.study import load_study
    from tokencredit.study.tables import write_text

    found = []
    for files in [[path] for path in args.file] or [[]]:
        found.append(look(load_study(*settings_of(args.base, files))))
        print(text(found[-1], 0 if args.all else 10))
    if args.html:
        write_text(args.html, page(found))


def doctor(args: argparse.Namespace) -> None:
    from tokencredit.grid.doctor import examine

    print("\n".join(examine(args.profile)))


def track(args: argparse.Namespace) -> None:
    from tokencredit.console import Console
    from tokencredit.study.tables import write_json
    from tokencredit.tracking.store import StoreError, shown, store_uri
    from tokencredit.tracking.sync import Receipt, sync

    with ExitStack() as stack:
        if args.log:
            stack.enter_context(Console(args.log, "track"))
        try:
            receipt = sync(args.results)
        except StoreError as error:
            receipt = Receipt(shown(store_uri(args.results)), errors=[str(error)])
        for line in receipt.errors:
            print(f"warning: tracking: {line}", file=sys.stderr)
        print(
            f"tracking: {receipt.runs} runs in {receipt.store} ({receipt.created} new, {receipt.updated} grown, "
            f"{receipt.remade} remade, {receipt.unchanged} unchanged)",
            file=sys.stderr,
        )
    if args.receipt:
        write_json(args.receipt, receipt.as_json())
    elif receipt.errors:
        raise UserError("not everything was written; see the warnings, and call it again when the store is up")


def serve(args: argparse.Namespace) -> None:
    from tokencredit.serving.library import Library
    from tokencredit.serving.server import serve as run

    run(Library(args.where, args.engine, args.device, args.dtype), args.host, args.port)


def benchmarks(args: argparse.Namespace) -> None:
    from tokencredit.problems.registry import checked, listing

    for line in checked(args.folder, args.names) if args.check or args.names else listing(args.folder):
        print(line, flush=True)


def docs(args: argparse.Namespace) -> None:
    from tokencredit.docs import pages
    from tokencredit.study.tables import write_text

    for path, text in pages(args.root).items():
        write_text(path, text)


def credit(args: argparse.Namespace) -> None:
    from tokencredit.credit.by_hand import compute
    from tokencredit.study.base import parse, unknown_name
    from tokencredit.study.methods import Method, with_params

    settings, where = settings_of(args.base, args.study)
    methods = settings.get("methods", {})
    if args.method not in methods:
        raise unknown_name("method", args.method, methods, where)
    method = parse(Method, with_params(methods[args.method] or {}, args.param), f"method {args.method}")
    print(json.dumps(compute(method, read_object(args.batch), str(args.batch)), indent=1, allow_nan=False))


def grade(args: argparse.Namespace) -> None:
    from tokencredit.grading.command import grade_file
    from tokencredit.study.tables import replacing

    with (
        replacing(args.output) if args.output else nullcontext() as path,
        open(path, "w", encoding="utf-8") if path else nullcontext(sys.stdout) as out,
    ):
        counts = grade_file(args.file, out, args.workers, not args.no_library, args.timeout)
    print(" ".join(f"{name}={number}" for name, number in sorted(counts.items())), file=sys.stderr)


def settings_of(base: Path, files: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Settings of `base` with each file laid over them in turn, and the name to use in messages."""
    from tokencredit.study.files import overlay, read_yaml

    settings = read_yaml(base)
    for path in files:
        settings = overlay(settings, read_yaml(path))
    return settings, str(files[-1] if files else base)


def read_object(path: Path | str) -> dict[str, Any]:
    try:
        content = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return content

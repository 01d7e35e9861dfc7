r"""Throughput of the grader, as a Markdown table.

    python benchmarks/grading.py [--workers 2] [--golds math_500.jsonl]

Integer answers never leave the calling process. Symbolic answers are measured with every pair distinct (nothing is
remembered), worker start excluded, half of them right but respelled and half of them another problem's gold; with and
without the library's verdict beside ours. "On idle cores" divides by the processor time used instead of the wall
time: the rate of a machine whose cores do nothing else. Without a file of golds (one JSON object a line, with
`answer`) a made-up list stands in.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from tokencredit.grading import Grader, Item
from tokencredit.grading.pool import cpu_seconds

GOALS = {"integers": 2000.0, "symbolic": 150.0}


def integer_items(count: int, length: int) -> list[Item]:
    """Responses of about `length` characters that end in a boxed integer, half of them right."""
    rng = random.Random(1)
    filler = "We compute \\frac{1}{2} of {x} and go on. " * (length // 40)
    items = []
    for _ in range(count):
        gold = rng.randrange(1000)
        answer = gold if rng.random() < 0.5 else rng.randrange(1000)
        items.append(Item(f"{gold:03d}", f"{filler}\\boxed{{{answer}}}", "integer"))
    return items


def symbolic_items(golds: list[str], length: int = 0) -> list[Item]:
    """Every gold twice: once respelled, once answered with the gold of another problem."""
    rng = random.Random(2)
    filler = "so x = 1 and {y}. " * (length // 18)
    items = []
    for gold in golds:
        bare = gold.strip("$ ")
        respelled = bare.replace("\\frac", "\\dfrac") if "\\frac" in bare else bare if bare.isdigit() else f"{{{bare}}}"
        items.append(Item(gold, f"{filler}\\boxed{{{respelled}}}"))
        items.append(Item(gold, f"{filler}\\boxed{{{rng.choice(golds)}}}"))
    return items


def made_up_golds() -> list[str]:
    """Some hundred golds of the kinds that benchmarks hold; two in three are integers."""
    golds = [str(k * k + 7) for k in range(300)]
    for k in range(2, 27):
        golds += [
            f"\\frac{{{k}}}{{{2 * k + 1}}}",
            f"{k}\\sqrt{{{k + 1}}}",
            f"({k}, {k + 3})",
            f"x^{k} - {k}x + 1",
            f"{k} + {k}i",
            f"\\frac{{{k}\\pi}}{{7}}",
        ]
    return golds


def rate(items: list[Item], workers: int, library: bool) -> tuple[float, float, int]:
    """(answers a second of wall time, answers a second if every worker had a core to itself, how many were right)."""

    def processor_time() -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in grader.pool.pids)

    with Grader(workers=workers, library=library) as grader:
        if any(i.kind != "integer" for i in items):  # start the workers
            grader.grade([Item("z^2", f"\\boxed{{z^2+{k}}}") for k in range(2 * workers)])
        start, processor = time.perf_counter(), processor_time()
        right = sum(v.correct for v in grader.grade(items))
        wall, processor = time.perf_counter() - start, processor_time() - processor
        return len(items) / wall, len(items) / (processor / max(1, len(grader.pool.pids))), right


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--golds", type=Path)
    arguments = parser.parse_args()
    if arguments.golds:
        golds = [str(json.loads(line)["answer"]) for line in arguments.golds.open(encoding="utf-8")]
        name = arguments.golds.stem
    else:
        golds, name = made_up_golds(), "made-up golds"
    hard = [g for g in golds if not g.strip("$-").isdigit()]
    rows: list[tuple[str, Callable[[], list[Item]], bool, str]] = [
        ("integers, 2 kB responses", lambda: integer_items(20_000, 2_000), False, "integers"),
        ("integers, 100 kB responses", lambda: integer_items(2_000, 100_000), False, "integers"),
        (f"{name}, with the library", lambda: symbolic_items(golds), True, "symbolic"),
        (f"{name}, ours alone", lambda: symbolic_items(golds), False, "symbolic"),
        (f"{name} without its integers, with the library", lambda: symbolic_items(hard), True, ""),
        (f"{name} without its integers, ours alone", lambda: symbolic_items(hard), False, ""),
    ]
    print(f"| answers ({arguments.workers} workers) | number | right | answers/s | on idle cores | goal |")
    print("|---|---:|---:|---:|---:|---:|")
    for label, make, library, goal in rows:
        items = make()
        speed, idle, right = rate(items, arguments.workers, library)
        wanted = f"{GOALS[goal]:.0f}" if goal else ""
        print(f"| {label} | {len(items)} | {right} | {speed:.0f} | {idle:.0f} | {wanted} |", flush=True)


if __name__ == "__main__":
    main()

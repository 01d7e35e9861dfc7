"""Training killed with SIGKILL at random moments and started again through Snakemake: is anything different?

    python benchmarks/kill.py [--kills 36] [--seed 1] [--folder FOLDER]

A small study in the manner of smoke.yaml, one cell per method, a checkpoint after every rollout. Half of the kills
are aimed at checkpoint writes, the others at random moments of training and loading; a third take Snakemake along.
On top come two per method at the end, while outputs are published, as far as they find the job alive. Then final
weights, metrics, rollouts and the samples of the last checkpoint are compared byte for byte with an unbroken run.
Exit code 1 where anything differs, work was lost, or fewer kills than asked found their job. About 12 minutes on two
cores.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.workflow.killing import Campaign, Tally, differences, plan, prepare, samples, study, target, weights

HEAD = (
    "| method | kills | during a checkpoint write | with Snakemake | trainer starts | went on from step "
    "| `--unlock` asked | `--rerun-incomplete` asked | identical |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=36, help="in all, the ones at the end not counted")
    parser.add_argument("--methods", nargs="+", default=["grpo", "mcpo", "scapo"])
    parser.add_argument("--seed", type=int, default=None, help="of the moments (default: drawn, and printed)")
    parser.add_argument("--folder", type=Path, help="work here and keep everything (must not exist)")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    say(f"seed of the moments: {seed}")
    if args.folder:
        return work(args.folder, args.methods, args.kills, seed)
    with tempfile.TemporaryDirectory() as folder:
        return work(Path(folder) / "kill", args.methods, args.kills, seed)


def work(folder: Path, methods: list[str], kills: int, seed: int) -> int:
    each = -(-kills // len(methods))
    rollouts = 6 * each  # a kill costs at most about six rollouts
    begun = time.monotonic()
    whole = prepare(folder / "whole", study(methods, rollouts))
    broken = whole.copy(folder / "broken")
    say("the unbroken run")
    whole.run(*map(target, methods))
    whole.run(*(samples(m, rollouts) for m in methods))
    if len({weights(whole, m) for m in methods}) != len(methods):
        say("the methods' final weights do not differ: this run would show nothing")
        return 1
    chance = random.Random(seed)
    tallies = [Campaign(broken, m, say).run(plan(chance, each)) for m in methods]
    broken.run(*(samples(m, rollouts) for m in methods))
    rows, problems = [HEAD, "| --- " * 9 + "|"], []
    for tally in tallies:
        differing = differences(whole, broken, tally.method)
        problems += [f"{tally.method}: {name} differs" for name in differing]
        problems += [f"{tally.method}: {line}" for line in tally.lost]
        if tally.kills < each:
            problems.append(f"{tally.method}: {each} kills were asked for, {tally.kills} found the job")
        rows.append(row(tally, not differing))
    print("\n".join(rows))
    print(f"\n{sum(t.kills for t in tallies)} kills, seed {seed}, {(time.monotonic() - begun) / 60:.1f} min")
    for line in problems:
        print(f"PROBLEM: {line}")
    return int(bool(problems))


def row(t: Tally, same: bool) -> str:
    steps = ", ".join(t.resumed)
    cells = (t.method, t.kills, t.writing, t.whole, t.starts, steps, t.unlocks, t.incomplete, "yes" if same else "NO")
    return "| " + " | ".join(map(str, cells)) + " |"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Peak memory of the score pass, forward and backward: does it grow with tokens x vocabulary?

    python benchmarks/scores.py [--tokens 2048 8192 16384] [--hidden 1024]

151,936 words, float32. Each line is a process of its own. "Above" is the peak of resident memory over what was
resident before the pass (hidden states, head, targets, libraries); with a trained head, less the head's gradient,
which any training needs. The gradient of the hidden states counts as ours. Linux (reads /proc).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

VOCAB, GOAL = 151_936, 1.5


def resident() -> int:
    """Bytes resident now."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def measure(tokens: int, hidden_size: int, trained: bool) -> float:
    """GB (10^9 bytes) above the tensors that must exist anyway. Runs in its own process."""
    import torch

    from tokencredit.model.scores import token_scores

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, generator=generator, requires_grad=True)
    head = torch.randn(VOCAB, hidden_size, generator=generator).mul_(0.02).requires_grad_(trained)
    targets = torch.randint(VOCAB, (tokens,), generator=generator)
    before = resident()
    token_scores(hidden, head, targets).logprob.sum().backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (peak - before - (4 * hidden_size * VOCAB if trained else 0)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 16_384])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--one", choices=("trained", "frozen"), help="measure in this process (used by the benchmark)")
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.tokens[0], arguments.hidden, arguments.one == "trained"))
        return
    table = [
        f"| tokens, hidden {arguments.hidden:,} | head | GB above | float32 logits, GB | goal |",
        "|---:|---|---:|---:|---|",
    ]
    cases = [(tokens, kind) for tokens in arguments.tokens for kind in ("frozen", "trained")]
    for tokens, kind in tqdm(cases, mininterval=2):
        command = [sys.executable, __file__, "--one", kind, "--tokens", str(tokens), "--hidden", str(arguments.hidden)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        above = float(subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout)
        table.append(f"| {tokens:,} | {kind} | {above:.2f} | {tokens * VOCAB * 4 / 1e9:.1f} | at most {GOAL} |")
    print("\n".join(table))


if __name__ == "__main__":
    main()

"""Peak memory of the score pass, forward and backward: does it grow with tokens x vocabulary?

    python benchmarks/scores.py

Each line is a process of its own. "Above" is the peak of resident memory over what stood there before the pass
(hidden states, head, targets), less the gradients that any training needs (of the hidden states, and of a trained
head). Full float32 logits are shown for comparison.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

VOCAB, HIDDEN = 151_936, 256
TOKENS = (2048, 8192, 16384)


def measure(tokens: int, trained: bool) -> float:
    """GiB above the tensors that must exist anyway. Runs in its own process."""
    import torch

    from tokencredit.model.scores import token_scores

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN, generator=generator, requires_grad=True)
    head = torch.randn(VOCAB, HIDDEN, generator=generator).mul_(0.02).requires_grad_(trained)
    targets = torch.randint(VOCAB, (tokens,), generator=generator)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    token_scores(hidden, head, targets).logprob.sum().backward()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gradients = 4 * HIDDEN * (tokens + (VOCAB if trained else 0))
    return (after - before) / 2**20 - gradients / 2**30


def main() -> None:
    if len(sys.argv) == 3:
        print(measure(int(sys.argv[1]), sys.argv[2] == "True"))
        return
    print("| tokens | head | GiB above | float32 logits would be |\n| --- | --- | --- | --- |")
    for tokens in TOKENS:
        for trained in (False, True):
            command = [sys.executable, __file__, str(tokens), str(trained)]
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            above = float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
            kind = "trained" if trained else "frozen"
            print(f"| {tokens:,} | {kind} | {above:.2f} | {tokens * VOCAB * 4 / 2**30:.1f} |", flush=True)


if __name__ == "__main__":
    main()

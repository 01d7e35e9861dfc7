"""GPUs by name: memory, and the peak that utilisation refers to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokencredit.study.errors import UserError

GIB = 2**30
CONTEXT = GIB  # CUDA context and libraries (ours)
FRAGMENTATION = 0.05  # of the memory that the allocator cannot use (ours)


@dataclass(frozen=True)
class Gpu:
    """memory: bytes; flops: dense bfloat16 operations per second, None where not known."""

    name: str
    memory: int
    flops: float | None

    @property
    def usable(self) -> int:
        """Bytes that tensors may take."""
        return int(self.memory * (1 - FRAGMENTATION)) - CONTEXT


# Memory in GiB, peak in TFLOPS (bfloat16, dense), from NVIDIA's data sheets.
KNOWN = {
    "H200": (140, 989),
    "H100": (80, 989),
    "A100": (80, 312),
    "A100-40": (40, 312),
    "L40S": (45, 362),
    "L4": (22, 121),
    "4090": (24, 165),
}


def gpu(name: str) -> Gpu:
    """A GPU by name, or one of so much memory (24GB) and unknown speed. Raises UserError for another name."""
    if name.upper() in KNOWN:
        memory, teraflops = KNOWN[name.upper()]
        return Gpu(name.upper(), memory * GIB, teraflops * 1e12)
    size = re.fullmatch(r"(\d+(?:\.\d+)?) *gi?b", name.strip(), re.IGNORECASE)
    if size and float(size[1]) > 0:
        return Gpu(name, int(float(size[1]) * GIB), None)
    raise UserError(f"--gpu {name}: not known; one of {', '.join(KNOWN)}, or its memory, e.g. 24GB")

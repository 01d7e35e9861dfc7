"""Seeds by hash: never drawn from global state, equal on every machine (DESIGN section 5)."""

from __future__ import annotations

import hashlib
import json


def derive(*parts: int | str) -> int:
    """63-bit seed from (study seed, purpose, ...): the first 8 bytes of the SHA-256 of the parts as JSON.

    >>> derive(1, "rollout", "grpo", 3) == derive(1, "rollout", "grpo", 3)
    True
    >>> derive(1, "a") != derive("1", "a")
    True
    """
    digest = hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1

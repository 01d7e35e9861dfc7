"""The key-value cache of rows in flight: each prompt's entries once, each row's own entries apart.

With G samples of one prompt, a decoding step reads the prompt's keys and values once instead of G times; reading
them is most of a step's work for small models. Live prompts are slots 0..p-1, live rows are rows 0..n-1; whoever
leaves is replaced by the last one, so every tensor a step needs is a leading slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokencredit.sampling.decoder import Decoder, View


@dataclass(frozen=True)
class Moves:
    """Rows that took the places of rows that left: row `tails[i]` is now row `holes[i]`."""

    holes: list[int]
    tails: list[int]


class Cache:
    """Room for `rows` rows of up to `capacity` own tokens, and as many prompts of up to `prompt_capacity` tokens."""

    def __init__(self, decoder: Decoder, rows: int, capacity: int, prompts: int, prompt_capacity: int) -> None:
        self.device = decoder.device
        self.own = decoder.new_entries(rows, capacity)
        self.prompt = decoder.new_entries(prompts, prompt_capacity)
        self.hidden = torch.zeros(prompts, decoder.architecture.hidden, device=decoder.device, dtype=decoder.dtype)
        self.slots: dict[tuple[int, ...], int] = {}  # live prompt -> slot
        self.prompt_of = np.zeros(rows, dtype=np.int64)  # slot of each row's prompt
        self.prompt_length = np.zeros(prompts, dtype=np.int64)
        self.own_length = np.zeros(rows, dtype=np.int64)
        self.n = 0
        self._view: View | None = None

    def add_prompts(self, prompts: Sequence[tuple[int, ...]], hidden: Tensor, entries: Tensor) -> None:
        """Keep what Decoder.prefill made of prompts that are not live yet."""
        first, last = len(self.slots), len(self.slots) + len(prompts)
        self.prompt[:, :, first:last, :, : entries.shape[4]] = entries
        self.hidden[first:last] = hidden
        self.prompt_length[first:last] = [len(p) for p in prompts]
        self.slots |= {prompt: first + i for i, prompt in enumerate(prompts)}

    def add_rows(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """One new row per (live) prompt -> hidden state of the prompt's last token [rows added, hidden]."""
        first, self.n = self.n, self.n + len(prompts)
        self.prompt_of[first : self.n] = [self.slots[p] for p in prompts]
        self.own_length[first : self.n] = 0
        self._view = None
        return self.hidden[self._tensor(self.prompt_of[first : self.n])]

    def view(self) -> View:
        """What Decoder.step needs to add one token to every live row."""
        if self._view is None:
            self._view = self._regroup()
        view, own_width = self._view, int(self.own_length[: self.n].max()) + 1
        return View(
            prompt=view.prompt,
            prompt_mask=view.prompt_mask,
            grid=view.grid,
            place=view.place,
            own=self.own[:, :, : self.n, :, :own_width],
            column=view.column,
            position=view.position,
        )

    def advance(self) -> None:
        """Every live row now holds the token its last step wrote."""
        self.own_length[: self.n] += 1
        if self._view is not None:
            self._view.column.add_(1)
            self._view.position.add_(1)

    def leave(self, done: Sequence[int]) -> Moves:
        """Take rows out, and prompts no row needs any more."""
        gone, left = set(done), self.n - len(done)
        moves = Moves([r for r in sorted(gone) if r < left], [r for r in range(left, self.n) if r not in gone])
        if moves.holes:
            width = int(self.own_length[moves.tails].max())
            self._copy(self.own, moves, width)
            self.prompt_of[moves.holes] = self.prompt_of[moves.tails]
            self.own_length[moves.holes] = self.own_length[moves.tails]
        self.n = left
        self._drop_prompts()
        self._view = None
        return moves

    def _drop_prompts(self) -> None:
        live = np.bincount(self.prompt_of[: self.n], minlength=len(self.slots)) > 0
        left = int(live.sum())
        if left == len(self.slots):
            return
        holes = np.flatnonzero(~live[:left])
        tails = left + np.flatnonzero(live[left:])
        slot = np.arange(len(live))
        if len(holes):
            self._copy(self.prompt, Moves(holes.tolist(), tails.tolist()), int(self.prompt_length[tails].max()))
            self.hidden[self._tensor(holes)] = self.hidden[self._tensor(tails)]
            self.prompt_length[holes] = self.prompt_length[tails]
            slot[tails] = holes
        self.prompt_of[: self.n] = slot[self.prompt_of[: self.n]]
        self.slots = {prompt: int(slot[s]) for prompt, s in self.slots.items() if live[s]}

    def _copy(self, entries: Tensor, moves: Moves, width: int) -> None:
        to, of = self._tensor(np.array(moves.holes)), self._tensor(np.array(moves.tails))
        entries[:, :, to, :, :width] = entries[:, :, of, :, :width]

    def _regroup(self) -> View:
        """The rows of each prompt side by side: a grid [p, G], G the largest number of rows of one prompt."""
        n, p = self.n, len(self.slots)
        slot = self.prompt_of[:n]
        order = np.argsort(slot, kind="stable")
        counts = np.bincount(slot, minlength=p)
        size = int(counts.max())
        within = np.arange(n) - np.repeat(counts.cumsum() - counts, counts)
        place = np.empty(n, dtype=np.int64)
        place[order] = slot[order] * size + within
        grid = np.zeros(p * size, dtype=np.int64)  # places without a row repeat row 0; nobody reads them
        grid[place] = np.arange(n)
        length = self.prompt_length[:p]
        width = int(length.max())
        hidden = np.arange(width) >= length[:, None]
        mask = torch.zeros(p, 1, 1, width, device=self.device)
        mask.masked_fill_(self._tensor(hidden)[:, None, None], -torch.inf)
        return View(
            prompt=self.prompt[:, :, :p, :, :width],
            prompt_mask=mask,
            grid=self._tensor(grid),
            place=self._tensor(place),
            own=self.own,
            column=self._tensor(self.own_length[:n].copy()),
            position=self._tensor(length[slot] + self.own_length[:n]),
        )

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)

"""What lets a training job die at any instant: checkpoints, append-only logs with known lengths, and a lease.

A checkpoint is a folder `step-00000040` with state.pt and manifest.json (spec, inputs, byte lengths of the logs,
SHA-256 of state.pt). It is written under a temporary name, fsynced, and renamed last; the newest two are kept.
Resume takes the newest valid one, cuts the logs back to the lengths it names, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tokencredit.study.errors import UserError
from tokencredit.study.provenance import file_digest
from tokencredit.study.tables import write_json

KEPT = 2


class StateFolder:
    """The resumable state of one cell, bound to one spec and one set of inputs."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        """Refuses a folder that holds another spec's or other inputs' state, naming the keys that differ."""
        self.folder, self.identity = folder, dict(identity)
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "identity.json"
        if known.exists():
            differing = differing_keys(json.loads(known.read_text()), json.loads(json.dumps(self.identity)))
            if differing:
                raise UserError(
                    f"{folder}: the checkpoint there belongs to another run; it differs in {', '.join(differing[:8])}. "
                    "Put the old values back to go on, or delete that folder to start anew"
                )
        else:
            write_json(known, self.identity)
        for leftover in folder.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def save(self, step: int, state: Mapping[str, Any], logs: Sequence[AppendLog]) -> Path:
        """Write the checkpoint of optimisation step `step`; UserError where the disk is full, nothing lost."""
        final = self.folder / f"step-{step:08d}"
        temporary = self.folder / f".tmp-{step:08d}-{os.getpid()}"
        try:
            lengths = {log.path.name: log.sync() for log in logs}
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            with open(temporary / "state.pt", "wb") as handle:
                torch.save(dict(state), handle)
                handle.flush()
                os.fsync(handle.fileno())
            manifest = {"step": step, "logs": lengths, "sha256": file_digest(temporary / "state.pt")}
            write_json(temporary / "manifest.json", manifest)
            if final.exists():  # an invalid one that resume passed over
                shutil.rmtree(final)
            os.rename(temporary, final)
            _sync_folder(self.folder)
        except (OSError, RuntimeError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            kept = self.steps()
            raise UserError(
                f"could not write the checkpoint of step {step} to {self.folder}: {error}. "
                f"Earlier checkpoints are intact ({', '.join(map(str, kept)) or 'none yet'}); "
                "free some space and run again to go on from there"
            ) from error
        for old in self.steps()[:-KEPT]:
            shutil.rmtree(self.folder / f"step-{old:08d}")
        return final

    def steps(self) -> list[int]:
        """Steps of the checkpoints present, oldest first, valid or not."""
        return sorted(int(p.name.removeprefix("step-")) for p in self.folder.glob("step-*"))

    def load(self, logs: Sequence[AppendLog]) -> tuple[dict[str, Any] | None, list[str]]:
        """(newest valid state or None, what was passed over and why); cuts the logs back to where it stood."""
        remarks = []
        for step in reversed(self.steps()):
            folder = self.folder / f"step-{step:08d}"
            try:
                manifest = json.loads((folder / "manifest.json").read_text())
                if file_digest(folder / "state.pt") != manifest["sha256"]:
                    raise ValueError("state.pt does not have the digest of its manifest")
                lengths = manifest["logs"]
                for log in logs:
                    if log.size() < lengths[log.path.name]:
                        raise ValueError(f"{log.path.name} is shorter than the checkpoint says")
                state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                remarks.append(f"checkpoint of step {step} is damaged and was passed over ({error})")
                continue
            for log in logs:
                log.cut(lengths[log.path.name])
            return state, remarks
        for log in logs:
            log.cut(0)
        return None, remarks

    def clear(self) -> None:
        """Remove everything but the lease: the run is complete and published."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lease.json":
                path.unlink()


def differing_keys(old: Any, new: Any, where: str = "") -> list[str]:
    """Dotted names of the entries in which two JSON values differ.

    >>> differing_keys({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            name
            for key in sorted(old.keys() | new.keys())
            for name in differing_keys(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
        ]
    return [] if old == new else [where]


class AppendLog:
    """JSON lines, appended; `sync` makes them durable and returns their length in bytes."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = open(path, "ab")  # noqa: SIM115

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            self._handle.write(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")

    def sync(self) -> int:
        self._handle.flush()
        os.fsync(self._handle.fileno())
        return self.path.stat().st_size

    def size(self) -> int:
        self._handle.flush()
        return self.path.stat().st_size

    def cut(self, length: int) -> None:
        self._handle.flush()
        os.truncate(self.path, length)

    def read(self) -> list[dict[str, Any]]:
        self._handle.flush()
        with open(self.path, "rb") as handle:
            return [json.loads(line) for line in handle]

    def close(self) -> None:
        self._handle.close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

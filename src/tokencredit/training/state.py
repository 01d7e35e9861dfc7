"""What lets a training job die at any instant: checkpoints, append-only logs, and the finished outputs.

A checkpoint is a folder `step-00000040` with state.pt and manifest.json (SHA-256 of state.pt and of itself, length
and SHA-256 of each log). It is written under a temporary name, fsynced, and renamed last; the newest two are kept.
Resume takes the newest valid one, cuts the logs back to the lengths it names, and says so.

Outputs are made in `final/`, sealed by final.json (their digests), and then linked to where the workflow wants them.
They stay there, which costs no space: the workflow deletes the outputs of a job that was killed between its last
write and its exit, or before the workflow noted its success, and the next start hands them out again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tokencredit.model.checkpoint import publish
from tokencredit.study.errors import UserError
from tokencredit.study.provenance import code_hash, file_digest
from tokencredit.study.tables import write_json

KEPT = 2
OURS = {"identity.json", "lease.json"}
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)  # what reading damaged files raises
ADVICE = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
    errno.EIO: "see to the disk",
    errno.ESTALE: "mount it again",
}


class StateFolder:
    """The resumable state of one cell, bound to one spec and one set of inputs."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        """Refuses a folder that holds another spec's or other inputs' unfinished state, naming the keys that differ."""
        self.folder, self.identity = folder, json.loads(json.dumps(identity))
        self.final = folder / "final"
        self._seal = folder / "final.json"
        self._step: int | None = None  # of the checkpoint last loaded or written
        self._damaged: list[int] = []  # steps of the checkpoints that `load` passed over
        folder.mkdir(parents=True, exist_ok=True)
        known, differing = folder / "identity.json", []
        if known.exists():
            try:
                differing = differing_keys(json.loads(known.read_text()), self.identity)
            except ValueError:
                differing = ["identity.json, which is damaged"]
            if differing and not self._seal.exists():  # of a run that was finished nothing would be lost
                raise UserError(
                    f"{folder}: the checkpoint there belongs to another run; it differs in {', '.join(differing[:8])}. "
                    "Put the old values back to go on, or delete that folder to start anew"
                )
            if differing:
                _remove(*folder.glob("step-*"), *folder.glob("*.jsonl"), folder / "exports")
        if not known.exists() or differing:
            write_json(known, self.identity)
        self.sealed = self._is_sealed()  # `final` holds this run's outputs, whole, made by this code
        if not self.sealed:
            _remove(self._seal)
        _remove(*folder.glob(".tmp-*"), *folder.glob(".*.tmp"))

    def save(self, step: int, state: Mapping[str, Any], logs: Sequence[AppendLog]) -> Path:
        """Write the checkpoint of optimisation step `step`; UserError where the disk is full, nothing lost."""
        final = self.folder / f"step-{step:08d}"
        if step == self._step:
            return final
        temporary = self.folder / f".tmp-{step:08d}-{os.getpid()}"
        try:
            marks = {log.path.name: log.sync() for log in logs}
            _remove(temporary)
            temporary.mkdir()
            with open(temporary / "state.pt", "wb") as handle:
                torch.save(dict(state), handle)
                handle.flush()
                os.fsync(handle.fileno())
            manifest = {"step": step, "logs": marks, "sha256": file_digest(temporary / "state.pt")}
            write_json(temporary / "manifest.json", {**manifest, "self": _digest(manifest)})
            _sync(temporary)
            _remove(final)  # an invalid one that resume passed over
            os.rename(temporary, final)
            _sync(self.folder)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                _remove(temporary)
            known = _system_error(error)  # torch hides the reason behind one of its own
            reason = known.strerror if known and known.strerror else str(error)
            todo = ADVICE.get(known.errno or 0, "see to it") if known else "see to it"
            raise UserError(
                f"could not write the checkpoint of step {step} to {self.folder}: {reason}. "
                f"{_intact(self.folder)}; {todo} and run again to go on from there"
            ) from error
        self._step = step
        _remove(*(self.folder / f"step-{old:08d}" for old in self._damaged if old != step))
        _remove(*(self.folder / f"step-{old:08d}" for old in self.steps()[:-KEPT]))
        self._damaged = []
        return final

    def steps(self) -> list[int]:
        """Steps of the checkpoints present, oldest first, valid or not."""
        return _steps(self.folder)

    def load(self, logs: Sequence[AppendLog]) -> tuple[dict[str, Any] | None, list[str]]:
        """(newest valid state or None, what was passed over and why); cuts the logs back to where it stood."""
        remarks = []
        for step in reversed(self.steps()):
            folder = self.folder / f"step-{step:08d}"
            try:
                manifest = json.loads((folder / "manifest.json").read_text())
                if manifest.pop("self") != _digest(manifest):
                    raise ValueError("manifest.json does not have its digest")
                if file_digest(folder / "state.pt") != manifest["sha256"]:
                    raise ValueError("state.pt does not have the digest of its manifest")
                marks = manifest["logs"]
                for log in logs:
                    log.check(marks[log.path.name])
                state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
            except DAMAGE as error:
                remarks.append(f"checkpoint of step {step} is damaged and was passed over ({error})")
                self._damaged.append(step)
                continue
            for log in logs:
                log.cut(marks[log.path.name]["bytes"])
            self._step = step
            return state, remarks
        for log in logs:
            log.cut(0)
        return None, remarks

    # --- the finished outputs ---

    def start_final(self) -> Path:
        """The empty folder `final`, to put the outputs in."""
        _remove(self._seal, self.final)
        self.final.mkdir()
        return self.final

    def hand_out(self, out: Path) -> None:
        """Seal `final`, link its files to `out` with the record last, and drop what only resuming needed."""
        if not self.sealed:
            for path in (*self.final.rglob("*"), self.final):
                _sync(path)
            seal = {"identity": _digest(self.identity), "code": code_hash(), "files": _digests(self.final)}
            write_json(self._seal, seal)
            _sync(self.folder)
            self.sealed = True
        for folder in sorted(p for p in self.final.iterdir() if p.is_dir()):
            publish(folder, out / folder.name)
        publish(self.final, out, last="train.json")
        kept = {*OURS, self._seal.name, self.final.name}
        _remove(*(p for p in self.folder.iterdir() if p.name not in kept))

    def _is_sealed(self) -> bool:
        try:
            seal = json.loads(self._seal.read_text())
            same = seal["identity"] == _digest(self.identity) and seal["code"] == code_hash()
            return same and seal["files"] == _digests(self.final)
        except DAMAGE:
            return False

    def clear(self) -> None:
        """Remove everything but the lease, checkpoints first: what they refer to must outlive them."""
        _remove(*self.folder.glob("step-*"), *(p for p in self.folder.iterdir() if p.name != "lease.json"))


@contextlib.contextmanager
def storage(state: Path) -> Iterator[None]:
    """A full, read-only or lost disk becomes one UserError that says where, what is safe, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        where = error.filename2 or error.filename or state
        raise UserError(
            f"{where}: {os.strerror(error.errno)}. {_intact(state)}; {ADVICE[error.errno]} and run again to go on"
        ) from error


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
    """JSON lines, appended, with a running digest; `sync` makes them durable and says how far they go."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = open(path, "ab", buffering=0)  # noqa: SIM115
        self._size = 0
        self._hash = hashlib.sha256()
        self.cut(path.stat().st_size)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = (json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n" for row in rows)
        data = b"".join(lines)
        left = memoryview(data)
        with self._named():
            while left:  # a disk that is nearly full takes a part
                left = left[self._handle.write(left) :]
        self._hash.update(data)
        self._size += len(data)

    def sync(self) -> dict[str, Any]:
        """Length and SHA-256 of what is on the disk now."""
        with self._named():
            os.fsync(self._handle.fileno())
        return {"bytes": self._size, "sha256": self._hash.hexdigest()}

    def check(self, mark: Mapping[str, Any]) -> None:
        """ValueError where the log does not begin with what `mark` names."""
        if self.path.stat().st_size < mark["bytes"]:
            raise ValueError(f"{self.path.name} is shorter than the checkpoint says")
        if self._read(mark["bytes"]).hexdigest() != mark["sha256"]:
            raise ValueError(f"{self.path.name} does not have the digest that the checkpoint names")

    def cut(self, length: int) -> None:
        """Go back to the first `length` bytes."""
        os.truncate(self.path, length)
        self._size, self._hash = length, self._read(length)

    def read(self) -> list[dict[str, Any]]:
        with open(self.path, "rb") as handle:
            return [json.loads(line) for line in handle]

    def close(self) -> None:
        self._handle.close()

    def _read(self, length: int) -> Any:
        """The digest, still open, of the first `length` bytes."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as handle:
            while length and (block := handle.read(min(length, 1 << 20))):
                digest.update(block)
                length -= len(block)
        return digest

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of a file that is open do not name it."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def _steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name))


def _intact(state: Path) -> str:
    kept = ", ".join(map(str, _steps(state))) if state.is_dir() else ""
    return f"Earlier checkpoints are intact ({kept or 'none yet'})"


def _system_error(error: BaseException) -> OSError | None:
    """The error of the operating system behind an error, if there is one."""
    known: BaseException | None = error
    while known is not None and not isinstance(known, OSError):
        known = known.__cause__ or known.__context__
    return known


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): file_digest(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def _remove(*paths: Path) -> None:
    """Remove files and folders, in this order; what is not there is passed over."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Make a file, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The lease where the disk or the locks fail it, and signals that come at a bad moment."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
from pathlib import Path

import pytest

import tokencredit.training.lease as module
from tokencredit.study import UserError
from tokencredit.training.lease import Lease
from tokencredit.training.stop import Interrupted, StopWatch


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def entry(pid: int, host: str = "") -> str:
    return json.dumps({"host": host or socket.gethostname(), "pid": pid, "job": "", "since": "now", "released": False})


def test_without_locks_a_live_holder_is_respected_and_a_dead_one_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = tmp_path / "lease.json"
    with Lease(tmp_path) as first:
        assert first.taken_over == ""
    path.write_text(entry(os.getppid()))
    with pytest.raises(UserError, match=f"held by process {os.getppid()} on"), Lease(tmp_path):
        pass
    path.write_text(entry(2**22 + 1))  # above the largest process id
    with Lease(tmp_path) as taken:
        assert f"process {2**22 + 1}" in taken.taken_over


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00\x00"])
def test_damaged_lease_does_not_keep_a_job_out(content: str, tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text(content)
    with Lease(tmp_path) as lease:
        assert lease.taken_over == ""
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()


def test_full_disk_when_leaving_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def work() -> None:
        with monkeypatch.context() as patch, Lease(tmp_path):
            patch.setattr(os, "pwrite", full)
            raise UserError("what happened")

    with pytest.raises(UserError, match="what happened"):
        work()
    with Lease(tmp_path):  # the kernel has freed it
        pass


def test_heartbeat_outlives_a_disk_that_fails_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    beats = []

    def utime(path: object) -> None:
        beats.append(path)
        if len(beats) < 3:
            raise OSError(errno.EIO, "Input/output error")

    with Lease(tmp_path) as lease:
        monkeypatch.setattr(os, "utime", utime)
        while len(beats) < 5:
            assert lease._thread.is_alive()


def test_second_signal_does_not_break_into_the_saving() -> None:
    def rollout() -> None:
        with stop.disposable():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)  # on the way out

    with StopWatch(None) as stop:
        with pytest.raises(Interrupted):
            rollout()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted


def test_signal_between_two_rollouts_interrupts_the_next_at_once() -> None:
    with StopWatch(None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted), stop.disposable():
            pytest.fail("a rollout was begun")
        os.kill(os.getpid(), signal.SIGTERM)

"""A SLURM cluster of one node on this machine, for tests: munged, slurmctld and slurmd on loopback, without systemd,
cgroups and accounting, with fake GPUs (character devices). Needs root and Debian's slurm-wlm and munge.

By hand: python -m tests.slurm.cluster start DIR; export SLURM_CONF=DIR/slurm.conf; ...; python -m tests.slurm.cluster stop DIR
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
GPUS = 2

CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
# a job that is put back into the queue waits for its credential to expire: 120 s elsewhere, at least 5
AuthInfo=socket={root}/munge/socket/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=300
KillWait=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=1-00:00:00 State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=30
PartitionName=high Nodes={host} MaxTime=1-00:00:00 State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    lost = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if lost:
        return f"SLURM is not installed ({', '.join(lost)}): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "a SLURM node of one's own is started as root"


def start(root: Path) -> dict[str, str]:
    """Start a cluster whose files lie under `root`; returns the environment that its clients need."""
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool", "munge/socket", "bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for path in (root, *root.parents):  # munge wants every folder above its socket searchable
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    for number in range(GPUS):
        os.mknod(root / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    memory = psutil.virtual_memory().total // 2**20
    conf = CONF.format(root=root, host=host, ports=_ports(2), memory=memory, gpus=GPUS)
    (root / "slurm.conf").write_text(conf.lstrip())
    (root / "gres.conf").write_text(f"AutoDetect=off\nNodeName={host} Name=gpu File={root}/gpu[0-{GPUS - 1}]\n")
    (root / "cgroup.conf").write_text("ConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=no\n")
    _shim(root)
    env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf"), "PATH": f"{root / 'bin'}{os.pathsep}{PATH}"}
    key = root / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    (root / "munge" / "socket").chmod(0o755)
    files = {"key-file": key, "socket": root / "munge/socket/munge.sock", "pid-file": root / "munged.pid"}
    files |= {"log-file": root / "munged.log", "seed-file": root / "munge/seed"}
    try:
        _run(env, "munged", "--force", *(f"--{name}={path}" for name, path in files.items()))
        _run(env, "slurmctld", "-c")
        _run(env, "slurmd", "-N", host)
        deadline = time.monotonic() + 60
        while "idle" not in _run(env, "sinfo", "-h", "-o", "%t", check=False):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no SLURM node after a minute:\n{_logs(root)}")
            time.sleep(0.2)
    except BaseException:
        stop(root)
        raise
    return env


def stop(root: Path) -> None:
    """End the jobs and the daemons that `start` left under `root`."""
    env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf"), "PATH": PATH}
    with suppress(Exception):
        _run(env, "scancel", "--user=root", check=False)
        _run(env, "scancel", "--user=root", "--signal=KILL", "--full", check=False)
    for name in ("slurmd", "slurmctld", "munged"):
        with suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int((root / f"{name}.pid").read_text()))
            if process.name() == name:
                process.send_signal(signal.SIGTERM)
                process.wait(10)


def _shim(root: Path) -> None:
    """Snakemake's step inside a job forgets SLURM_CONF; where it is not in /etc, its srun has to be told."""
    real = shutil.which("srun", path=PATH)
    path = root / "bin" / "srun"
    path.write_text(f'#!/bin/sh\nSLURM_CONF={root}/slurm.conf exec {real} "$@"\n')
    path.chmod(0o755)


def _run(env: dict[str, str], *words: str, check: bool = True) -> str:
    program = shutil.which(words[0], path=PATH) or words[0]
    done = subprocess.run([program, *words[1:]], env=env, capture_output=True, text=True, timeout=60, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(words)} left with {done.returncode}: {done.stderr}\n{_logs(Path(env['SLURM_CONF']).parent)}"
        )
    return done.stdout


def _ports(number: int) -> list[int]:
    """Free ports of loopback."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _logs(root: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(root.glob("*.log")))


if __name__ == "__main__":
    folder = Path(sys.argv[2]).resolve()
    if sys.argv[1] == "start":
        folder.mkdir(parents=True, exist_ok=True)
        start(folder)
        print(f"export SLURM_CONF={folder}/slurm.conf PATH={folder}/bin:$PATH")
    else:
        stop(folder)

"""What a SLURM cluster needs of the profile: which status command, account and GPU syntax, and requests it can give.

Everything is asked of the cluster itself; nothing is submitted (`sbatch --test-only` checks a request and runs
nothing). A request that no node of its partition can give, or a time over the partition's limit, is not refused by
every SLURM: the job may wait for ever, so it is told here.
"""

from __future__ import annotations

import getpass
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.grid.slurm import call
from tokencredit.study.errors import UserError
from tokencredit.study.files import read_yaml

STATUS_CHECK = 40  # seconds before Snakemake first asks for a job's state; jobs must be remembered thrice that long
UNLIMITED = 10**9


@dataclass(frozen=True)
class Node:
    """What one kind of node has."""

    cpus: int
    memory: int  # MB
    gpus: int


@dataclass(frozen=True)
class Request:
    """What one rule asks for at one attempt."""

    rule: str
    partition: str
    cpus: int
    memory: int  # MB
    gpus: int
    minutes: float
    attempt: int = 1

    @property
    def name(self) -> str:
        return self.rule if self.attempt == 1 else f"{self.rule} (attempt {self.attempt})"


def examine(profile: Path) -> list[str]:
    """The lines to print. UserError where the profile cannot be read; works, and says so, without a cluster."""
    path = profile / "config.yaml" if profile.is_dir() else profile
    settings = read_yaml(path)
    lost = [name for name in ("sinfo", "scontrol", "sbatch", "squeue") if shutil.which(name) is None]
    if lost:
        return [
            f"No SLURM here ({', '.join(lost)} not found): nothing to compare {path} with.",
            "On one machine, with any number of GPUs: snakemake --cores all",
        ]
    config = dict(re.findall(r"^(\w+)\s*= (.*)$", call("scontrol", "show", "config") or "", re.MULTILINE))
    if not config:
        return ["SLURM is here, but its controller does not answer (scontrol show config): is this a login node?"]
    lines = [f"SLURM {config.get('SLURM_VERSION', '?').strip()}, cluster {config.get('ClusterName', '?').strip()}"]
    wanted = {**_status(config), **_account(), **_requeue(config)}
    lines += ["", f"Lines of {path}:", *(f"  {line}" for line in wanted.values() if line)]
    syntax = _gpu_syntax()
    lines.append(f"  <<: &device {syntax}" if syntax else "  <<: &device {gpu: 0}         # no partition gives GPUs")
    trouble: dict[str, list[str]] = {}
    for request in requests(settings):  # the first attempt that does not fit is told
        trouble[request.rule] = trouble.get(request.rule) or misfits(request, *_partition(request.partition))
    told = [line for lines in trouble.values() for line in lines]
    return [*lines, "", *(told or ["Every request of the profile can be given."])]


def _status(config: dict[str, str]) -> dict[str, str]:
    if call("sacct", "-X", "-n") is not None:
        return {"status": "slurm-status-command: sacct"}
    number = re.match(r"\d+", config.get("MinJobAge", "").strip())
    age = int(number[0]) if number else 300
    lines = "slurm-status-command: squeue      # no accounting here: with sacct Snakemake would wait for ever"
    if age >= 3 * STATUS_CHECK:
        return {"status": lines}
    wait = max(age // 3, 1)
    return {
        "status": lines,
        "wait": f"slurm-init-seconds-before-status-checks: {wait}   # jobs are forgotten after {age} s",
    }


def _account() -> dict[str, str]:
    """The accounts of this user; without any, Snakemake must not look for one."""
    said = call("sacctmgr", "-n", "-P", "show", "assoc", f"user={getpass.getuser()}", "format=account") or ""
    names = list(dict.fromkeys(said.split()))
    if not names:
        return {"account": "slurm-no-account: true"}
    others = f"   # or {', '.join(names[1:])}" if names[1:] else ""
    return {"account": f"slurm_account: {names[0]}{others}   (under default-resources)"}


def _requeue(config: dict[str, str]) -> dict[str, str]:
    usual = "" if config.get("JobRequeue", "1").strip() == "1" else "   # needed: jobs are not put back by default"
    return {"requeue": f"slurm-requeue: true{usual}"}


def _gpu_syntax() -> str:
    """How one GPU is asked for, as a map of resources; empty where neither way is accepted."""
    partitions = _partitions()
    for flag, resources in (("--gpus=1", "{gpu: 1}"), ("--gres=gpu:1", "{gpu: 0, gres: gpu:1}")):
        for partition in partitions:
            if call("sbatch", "--test-only", f"--partition={partition}", flag, "--time=1", "--wrap=true") is not None:
                return resources + ("" if partition == partitions[0] else f"   # with slurm_partition: {partition}")
    return ""


def _partitions() -> list[str]:
    """Partitions that are up, the default first."""
    rows = [line.split("|") for line in (call("sinfo", "-h", "-o", "%P|%a") or "").splitlines()]
    names = dict.fromkeys(name for name, up in rows if up == "up")
    return [name.removesuffix("*") for name in sorted(names, key=lambda name: not name.endswith("*"))]


def _partition(name: str) -> tuple[str, float, list[Node]]:
    """(name, time limit in minutes, kinds of nodes) of a partition; the default one for an empty name."""
    name = name or next(iter(_partitions()), "")
    nodes, limit = [], float(UNLIMITED)
    for line in (call("sinfo", "-h", "-p", name, "-o", "%c|%m|%G|%l") or "").splitlines():
        cpus, memory, gres, most = line.split("|")
        gpus = sum(int(n) for n in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))
        nodes.append(Node(_number(cpus), _number(memory), gpus))
        limit = minutes(most)
    return name, limit, nodes


def requests(settings: dict[str, Any]) -> list[Request]:
    """What the profile asks for per rule: first attempt and last one. Expressions know `attempt`."""
    usual = settings.get("default-resources") or {}
    out = []
    for rule, own in {"every other rule": {}, **(settings.get("set-resources") or {})}.items():
        for attempt in dict.fromkeys((1, 1 + int(settings.get("retries", 0)))):
            given = {name: _value(rule, name, value, attempt) for name, value in {**usual, **own}.items()}
            gres = re.search(r"gpu(?::\w+)?:(\d+)", str(given.get("gres", "")))
            out.append(
                Request(
                    rule,
                    str(given.get("slurm_partition", "")),
                    int(given.get("cpus_per_task", 1)),
                    int(given.get("mem_mb", 0)),
                    int(given.get("gpu", 0)) or (int(gres[1]) if gres else 0),
                    minutes(str(given.get("runtime", 0))),
                    attempt,
                )
            )
    return out


def misfits(request: Request, partition: str, limit: float, nodes: list[Node]) -> list[str]:
    """Why a request cannot be given; empty where it can."""
    if not nodes:
        return [f"{request.name}: there is no partition '{partition}'"]
    out = []
    if request.minutes > limit:
        out.append(f"{request.name}: runtime {request.minutes:g} min, partition {partition} allows {limit:g}")
    if not any(n.cpus >= request.cpus and n.memory >= request.memory and n.gpus >= request.gpus for n in nodes):
        most = max(nodes, key=lambda n: (n.gpus >= request.gpus, n.memory, n.cpus))
        out.append(
            f"{request.name}: {request.cpus} CPUs, {request.memory} MB, {request.gpus} GPUs; a node of partition "
            f"{partition} gives at most {most.cpus} CPUs, {most.memory} MB, {most.gpus} GPUs"
        )
    return out


def minutes(text: str) -> float:
    """SLURM's and Snakemake's times in minutes.

    >>> [minutes(t) for t in ("90", "2:00:00", "1-00:00:00", "2h", "infinite")]
    [90.0, 120.0, 1440.0, 120.0, 1000000000.0]
    """
    if short := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text):
        return float(short[1]) * {"s": 1 / 60, "m": 1, "": 1, "h": 60, "d": 1440, "w": 10080}[short[2]]
    if not (found := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)):
        return float(UNLIMITED)
    days, hours, mins, seconds = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + mins + seconds / 60


def _number(text: str) -> int:
    """SLURM marks the least of several values by a plus."""
    return int(re.sub(r"\D", "", text) or 0)


def _value(rule: str, name: str, value: Any, attempt: int) -> Any:
    """A resource at one attempt: a number, text, or an expression of `attempt` as Snakemake takes it."""
    if not isinstance(value, str) or "attempt" not in value:
        return value
    try:
        return eval(value, {"__builtins__": {"min": min, "max": max, "int": int}}, {"attempt": attempt})
    except Exception as error:
        raise UserError(f"profile, {rule}: {name}: {value!r} cannot be worked out ({error})") from None

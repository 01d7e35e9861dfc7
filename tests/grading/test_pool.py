"""The pool of grading processes: bounded time, constant size, no process left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tokencredit.grading import Grader, Item
from tokencredit.grading.pool import Job, Pool

# passes the refusal rules, then computes for minutes
ENDLESS = r"\int \frac{1}{x^5+x+1} dx"


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_gone(pids: list[int], seconds: float = 15.0) -> list[int]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_running, pids)):
        time.sleep(0.1)
    return [p for p in pids if _running(p)]


@pytest.fixture
def pool():
    pool = Pool(2, timeout=1.0)
    yield pool
    pool.close()


def test_a_timeout_costs_its_own_job_only(pool: Pool) -> None:
    jobs = [Job(r"\frac12", r"\frac24", library=False) for _ in range(10)]
    jobs[4] = Job("y=2x+3", ENDLESS, library=False)
    start = time.monotonic()
    replies = pool.run(jobs)
    assert [r.status for r in replies] == ["ok"] * 4 + ["timeout"] + ["ok"] * 5
    assert [r.correct for r in replies] == [True] * 4 + [False] + [True] * 5
    assert time.monotonic() - start < 60
    assert pool.run(jobs[:4])[0].correct
    assert pool.alive == pool.size == 2
    assert pool.counts["timeout"] == 1


def test_our_verdict_outlives_a_library_that_hangs(pool: Pool) -> None:
    # ours refuses to compare such magnitudes at once; the library expands the power
    reply = pool.run([Job("5", "(99999^{99999})^{99999}", library=True)])[0]
    assert (reply.correct, reply.library, reply.status) == (False, False, "refused")
    assert pool.counts["library_timeout"] == 1


def test_a_dead_worker_is_replaced_and_its_job_done(pool: Pool) -> None:
    assert pool.run([Job("x", "x+0", library=False)] * 2)[0].correct
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    assert all(r.correct for r in pool.run([Job("x", "x+0", library=False)] * 8))
    assert pool.alive == 2


def test_workers_are_recycled() -> None:
    pool = Pool(1, recycle=3)
    try:
        replies = pool.run([Job("x", f"x+{k}-{k}", library=False) for k in range(1, 9)])
        assert all(r.correct for r in replies)
        assert pool.counts["recycled"] == 2
        assert pool.alive == 1
    finally:
        pool.close()


def test_memory_is_bounded() -> None:
    pool = Pool(1, memory_mb=1024)
    try:
        # the library would build a matrix of 80 GB
        replies = pool.run([Job("1", r"\operatorname{zeros}(99999,99999)"), Job("x", "x+0", library=False)])
        assert not replies[0].correct
        assert not replies[0].library
        assert replies[1].correct
        limits = Path(f"/proc/{pool.pids[0]}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
        assert line.split()[3] == str(1024 << 20)
    finally:
        pool.close()


def test_several_threads_share_a_grader() -> None:
    results: dict[int, list[bool]] = {}
    with Grader(workers=2, library=False) as grader:

        def work(number: int) -> None:
            items = [Item(f"x^{number}", f"\\boxed{{x^{k} \\cdot 1}}") for k in range(2, 8)]
            results[number] = [v.correct for v in grader.grade(items)]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {n: [k == n for k in range(2, 8)] for n in range(2, 8)}


def test_close_leaves_no_process() -> None:
    with Grader(workers=2) as grader:
        grader.grade([Item("x", f"\\boxed{{x+{k}}}") for k in range(1, 5)])
        pids = grader.pool.pids
        assert pids
        assert all(map(_running, pids))
    assert _wait_gone(pids) == []


SCRIPT = """
import signal, sys, time
from tokencredit.grading import Grader, Item
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born with SIGINT ignored
grader = Grader(workers=2, timeout=30.0)
grader.grade([Item("x", f"\\\\boxed{{x+{k}}}") for k in range(1, 5)])
print(*grader.pool.pids, flush=True)
if sys.argv[1] == "end":
    sys.exit(0)
try:
    grader.grade([Item("y=2x+3", "\\\\boxed{\\\\int \\\\frac{1}{x^5+x+1} dx}")] * 2)
except KeyboardInterrupt:
    # the pool is usable after an interrupt
    print(grader.grade([Item("x", "\\\\boxed{x-0}")])[0].correct, flush=True)
"""


@pytest.mark.parametrize("how", ["end", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_survives_its_parent(how: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(p) for p in parent.stdout.readline().split()]
    assert len(pids) == 2
    if how != "end":
        time.sleep(1.0)  # inside the second batch
        parent.send_signal(getattr(signal, how))
    rest = parent.stdout.read()
    parent.wait(timeout=60)
    assert _wait_gone(pids) == []
    if how == "SIGINT":
        assert rest.strip() == "True"


HOSTILE = (
    ["9^{" * k + "9" + "}" * k for k in range(2, 9)]
    + [f"\\binom{{{10**k}}}{{{10**k // 2}}}" for k in range(3, 12)]
    + ["(" * k + "1" + ")" * k for k in (10, 20, 100, 100_000)]
    + ["\\sqrt{" * k + "2" + "}" * k for k in (10, 20, 60)]
    + [
        "x" * 10**6,
        "1" * 10**6,
        " " * 10**6,
        "\\frac" * 200_000,
        "\x00",
        "1\x002",
        "\ud800",
        "0" * 300,
        "1000000!",
        "(10!)!",
        "10!!",
    ]
    + [
        "99999^{99999}",
        "2^{2^{2^{2^{2}}}}",
        "1e999999999",
        "10^{10^{10}}",
        "x^{10^9}",
        "(1+x)^{99999}",
        "(x+y+z)^{5000}",
    ]
    + [
        r"\sum_{k=1}^{10^9} k",
        r"\prod_{k=1}^{10000000} k",
        r"7^{7^{7}} \bmod 10",
        r"\operatorname{zeros}(99999,99999)",
        "|" * 50,
    ]
    + [
        "1/" * 100 + "1",
        "-" * 200 + "1",
        "1," * 140 + "1",
        "1+" * 140 + "1",
        "e^{e^{e^{e^{e^e}}}}",
        "10^{-10^{5}}",
        r"\sin(10^{5000})",
    ]
    + [
        r"\{" * 20 + "1" + r"\}" * 20,
        r"\left(\left[\left\{",
        r"\lfloor 10^{90000} \rfloor",
        "a=b=c=d=e=f",
        "x^5-y^5+xy=3",
    ]
)


@pytest.mark.slow
def test_500_hostile_answers_beside_500_honest_ones() -> None:
    rng = random.Random(7)
    golds = ["x^2+1", "5", "(1,2)", r"\frac{\pi}{2}", "x>3", r"\{1,2\}", "y=2x+3"]
    hostile = [
        f"\\boxed{{{HOSTILE[k % len(HOSTILE)]}{'' if k < len(HOSTILE) else rng.randrange(10**6)}}}" for k in range(496)
    ]
    hostile += [
        "\\boxed{1}" * 10_000,
        "\\boxed{" * 10_000 + "}" * 9_999,
        "\\boxed{" * 10_000,
        b"\\boxed{\xff\xfe}".decode("utf-8", "replace"),
    ]
    items, honest = [], []
    for k, response in enumerate(hostile):
        right = k % 2 == 0
        items += [
            Item(golds[k % 7], response),
            Item(r"\frac12", f"\\boxed{{\\frac{{{k + 1}}}{{{2 * k + 3 - right}}}}}"),
        ]
        honest.append(right)
    start = time.monotonic()
    with Grader(workers=2, timeout=1.0) as grader:
        verdicts = grader.grade(items)
        assert grader.pool.alive == grader.pool.size
    assert len(verdicts) == 1000
    assert [v.correct for v in verdicts[1::2]] == honest
    assert not any(v.correct for v in verdicts[0::2] if v.status != "ok")
    assert time.monotonic() - start < 240

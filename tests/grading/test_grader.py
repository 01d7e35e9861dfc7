"""The grader as its callers meet it: one verdict for one item, in order, whatever the items hold."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tokencredit.grading import Grader, Item
from tokencredit.grading.extract import last_box
from tokencredit.grading.pool import Job, Pool
from tokencredit.study.errors import UserError

# handed cases whose reference answer has no box: under the house rule that prose is never read they are wrong
WITHOUT_BOX = {"vc-043", "vc-049", "vc-105", "vc-127"}


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=2, timeout=5.0) as grader:
        yield grader


def test_handed_cases(grader: Grader, shared: Path) -> None:
    cases = [json.loads(line) for line in (shared / "cases" / "grading_cases.jsonl").open()]
    verdicts = grader.grade([Item(c["gold"], c["response"]) for c in cases])
    assert len(verdicts) == len(cases)
    wrong = {c["id"] for c, v in zip(cases, verdicts, strict=True) if v.correct != c["right"]}
    assert wrong == WITHOUT_BOX
    assert all(v.status == "no_box" for c, v in zip(cases, verdicts, strict=True) if c["id"] in WITHOUT_BOX)


def test_the_library_is_asked_about_the_same_box(grader: Grader, shared: Path) -> None:
    cases = [json.loads(line) for line in (shared / "cases" / "grading_cases.jsonl").open()]
    # where the whole response is one box in a sentence, the recorded verdict is that of the box
    cases = [c for c in cases if c["response"].count("\\boxed") == 1 and last_box(c["response"]).status == "ok"]
    assert len(cases) > 50
    verdicts = grader.grade([Item(c["gold"], c["response"]) for c in cases])
    assert [c["id"] for c, v in zip(cases, verdicts, strict=True) if v.correct_library != c["math_verify_says"]] == []


def test_integer_shortcut_agrees_with_the_library() -> None:
    rng = random.Random(11)
    pairs = [
        ("0", "0"),
        ("0", "1"),
        ("-1", "1"),
        ("999999999999999", "999999999999999"),
        ("999999999999999", "999999999999998"),
    ]
    while len(pairs) < 300:
        number = rng.randrange(-(10 ** rng.randrange(1, 16)) + 1, 10 ** rng.randrange(1, 16))
        pairs.append((str(number), str(number if rng.random() < 0.5 else number + rng.choice([-1, 1, 10]))))
    pool = Pool(1)
    replies = pool.run([Job(gold, box) for gold, box in pairs])
    pool.close()
    assert [p for p, r in zip(pairs, replies, strict=True) if r.library != (p[0] == p[1])] == []


def test_order_and_number_of_verdicts(grader: Grader) -> None:
    rng = random.Random(2)
    items, expected = [], []
    for _ in range(300):
        top, bottom, times = rng.randrange(1, 9), rng.randrange(1, 9), rng.randrange(1, 9)
        right = rng.random() < 0.5
        answer = f"\\frac{{{top * times + (not right)}}}{{{bottom * times}}}"
        items.append(Item(f"\\frac{{{top}}}{{{bottom}}}", f"so \\boxed{{{answer}}}"))
        expected.append(right)
    assert [v.correct for v in grader.grade(items)] == expected
    assert grader.grade([]) == []


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    golds = [r"x^2+1", r"\frac{\pi}{2}", "(1,2)", r"\{1,2\}", "x>3", "y=2x+3", r"\text{east}", r"\sqrt{2}"]
    items = [Item(g, f"\\boxed{{{b}}}") for g in golds for b in golds] + [
        Item("5", "no box"),
        Item("5", r"\boxed{9^{9^{9^9}}}"),
    ]

    def results(workers: int) -> list[tuple]:
        with Grader(workers=workers) as grader:
            return [(v.correct, v.correct_library, v.extracted, v.status) for v in grader.grade(items)]

    assert results(1) == results(3)


def test_equal_pairs_cost_once(grader: Grader) -> None:
    before = len(grader._known)
    first, second = grader.grade([Item(r"\sqrt{7}", r"a \boxed{7^{1/2}}"), Item(r"\sqrt{7}", r"b \boxed{7^{1/2}}")])
    assert first.correct
    assert second.correct
    assert len(grader._known) == before + 1
    again = grader.grade([Item(r"\sqrt{7}", r"c \boxed{7^{1/2}}")])[0]
    assert again.correct
    assert again.seconds < first.seconds


def test_library_off_leaves_none() -> None:
    with Grader(library=False) as grader:
        verdicts = grader.grade(
            [Item("5", r"\boxed{5}"), Item("5", "?"), Item("x", r"\boxed{2x}"), Item("1", r"\boxed{" + "x" * 999 + "}")]
        )
    assert [v.correct_library for v in verdicts] == [None] * 4
    assert [v.status for v in verdicts] == ["ok", "no_box", "ok", "refused"]


def test_statuses_are_counted() -> None:
    with Grader(library=False) as grader:
        grader.grade(
            [
                Item("5", r"\boxed{5}"),
                Item("5", "5"),
                Item("5", r"\boxed{5", truncated=True),
                Item("5", r"\boxed{9^{9^{9}}}"),
                Item("x", r"\boxed{\frac{}}"),
                Item("5", r"\boxed{}"),
            ]
        )
        assert dict(grader.counts) == {"ok": 1, "no_box": 1, "unclosed": 1, "refused": 1, "unparsable": 2}


def test_truncated_inside_the_last_box_is_wrong(grader: Grader) -> None:
    response = r"\boxed{5} hmm \boxed{5"
    cut, ended = grader.grade([Item("5", response, truncated=True), Item("5", response)])
    assert (cut.correct, cut.status) == (False, "unclosed")
    assert (ended.correct, ended.status) == (True, "ok")


def test_long_boxes_are_carried_cut() -> None:
    with Grader(library=False) as grader:
        assert len(grader.grade([Item("5", "\\boxed{" + "1" * 5000 + "}")])[0].extracted) == 1000


def test_bad_use_is_refused() -> None:
    with pytest.raises(UserError, match="essay"), Grader() as grader:
        grader.grade([Item("5", r"\boxed{5}", "essay")])
    with pytest.raises(UserError, match="worker"):
        Grader(workers=0)

"""Which problems, which samples: decided by hashes, repeated by none but their own place."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.conftest import make_training
from tokencredit.sampling import Completion, Params, Request
from tokencredit.study.methods import Length, Overlong, Refill
from tokencredit.training.rollout import Feed, Rollout, draw, grade, hold, refilled, shape
from tokencredit.training.values import text_grade

PROBLEMS = [
    {"problem_id": f"p{i}", "problem": f"q{i % 7}", "choices": [], "answer": "1", "answer_kind": "integer"}
    for i in range(10)
]


class Letters:
    """A prompter whose ids are character codes."""

    def ids(self, problem: str, choices: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(ord, problem))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


class Echo:
    """An engine that answers with the request's seed, and remembers what it was asked."""

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        self.requests, self.params = list(requests), params
        text = r"\boxed{1}"
        return [
            Completion(tuple(map(ord, text if i % 2 else text[:-1])), "stop" if i % 2 else "length", (0.0,) * 9)
            for i in range(len(requests))
        ]


def ids(problems: Sequence[Any]) -> list[str]:
    return [p["problem_id"] for p in problems]


def test_each_epoch_asks_every_problem_once_in_a_new_order() -> None:
    feed = Feed(PROBLEMS, seed=1, cell_seed=0, subset=None)
    first, second = ids(feed.take(0, 10)), ids(feed.take(10, 10))
    assert sorted(first) == sorted(second) == sorted(ids(PROBLEMS))
    assert first != second


def test_going_on_from_any_place_skips_and_repeats_nothing() -> None:
    whole = ids(Feed(PROBLEMS, 1, 0, None).take(0, 40))
    for start in (0, 3, 10, 27):
        assert ids(Feed(PROBLEMS, 1, 0, None).take(start, 40 - start)) == whole[start:]


def test_subset_and_order_do_not_depend_on_the_order_of_the_file() -> None:
    shuffled = PROBLEMS[:]
    random.Random(0).shuffle(shuffled)
    a, b = (ids(Feed(p, 1, 0, 4).take(0, 12)) for p in (PROBLEMS, shuffled))
    assert a == b
    assert len(set(a)) == 4


def test_data_seeds_draw_their_own_problems() -> None:
    subsets = {frozenset(ids(Feed(PROBLEMS, 1, s, 4).take(0, 4))) for s in range(8)}
    assert len(subsets) > 4


def test_every_sample_has_its_own_seed_and_every_prompt_its_own_group() -> None:
    """Two problems with one text are two groups; no seed occurs twice in a run, and cells differ."""
    training = make_training(prompts=10, group=4, updates=2, max_tokens=11, temperature=0.7)
    engine, seen = Echo(), []
    for cell_seed in (0, 1):
        for index in (0, 1):
            drawn = draw(index, Feed(PROBLEMS, 1, cell_seed, None), engine, Letters(), training, (2, 3))
            seen += drawn[3]
    assert len(set(seen)) == len(seen) == 2 * 2 * 40
    assert engine.params == Params(max_tokens=11, temperature=0.7, eos=(2, 3))
    assert [r.seed for r in engine.requests] == seen[-40:]


def test_rewards_and_groups() -> None:
    from tokencredit.grading import Grader

    training = make_training(prompts=4, group=4)
    drawn = draw(0, Feed(PROBLEMS, 1, 0, None), Echo(), Letters(), training, (2,))
    with Grader(library=False) as grader:
        rollout = grade(*drawn, Letters(), grader, 4)
    assert rollout.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert rollout.rewards.tolist() == [0.0, 1.0] * 8, "an unclosed box is wrong, whatever stands in it"
    assert rollout.finish == ["length", "stop"] * 8
    assert rollout.mask.sum(-1).tolist() == [8, 9] * 8


def test_a_length_term_grows_with_the_distance_and_adds_to_a_penalty() -> None:
    """|3 - 4| / 4 = .25, |8 - 4| / 4 = 1, |40 - 4| / 4 = 9 counts as 1; strength .5."""
    rollout = lot(0, [2], size=3)
    rollout = dataclasses.replace(rollout, responses=[(0,) * n for n in (3, 8, 40)])
    held = hold(rollout, Length(like="other", strength=0.5), 4.0)
    assert held.penalty is not None
    assert held.penalty.tolist() == [-0.125, -0.5, -0.5]
    assert held.rewards.tolist() == [0.875, 0.5, -0.5]
    assert held.correct.tolist() == [1.0, 1.0, 0.0]
    both = hold(dataclasses.replace(rollout, penalty=torch.tensor([-1.0, 0.0, 0.0])), Length(like="other"), 4.0)
    assert both.penalty is not None
    assert both.penalty.tolist() == [-1.125, -0.5, -0.5]


class Right:
    """A grader that finds every box right."""

    def grade(self, items: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(correct=True) for _ in items]


def test_a_truncated_response_earns_nothing_however_right_its_box_is() -> None:
    grader: Any = Right()
    drawn = draw(0, Feed(PROBLEMS, 1, 0, None), Echo(), Letters(), make_training(prompts=4, group=4), (2,))
    rollout = grade(*drawn, Letters(), grader, 4)
    assert rollout.finish == ["length", "stop"] * 8
    assert rollout.rewards.tolist() == [0.0, 1.0] * 8
    prompter: Any = Letters()
    assert text_grade(prompter, grader)([PROBLEMS[0]] * 2, [(3, 4), (3, 2)], ["length", "stop"]) == [0.0, 1.0]


def lot(k: int, rights: Sequence[int], size: int = 4) -> Rollout:
    """A lot of groups with so many right answers each; every row tells where it came from."""
    rows = [(g, i) for g in range(len(rights)) for i in range(size)]
    return Rollout(
        problems=[{"problem_id": f"{k}.{g}"} for g in range(len(rights))],
        prompts=[(k, g) for g, _ in rows],
        responses=[(k, g, i) for g, i in rows],
        finish=["stop"] * len(rows),
        texts=[f"{k}.{g}.{i}" for g, i in rows],
        groups=torch.arange(len(rights)).repeat_interleave(size),
        correct=torch.tensor([float(i < rights[g]) for g, i in rows], dtype=torch.float64),
        sampler_logprobs=[(0.0,)] * len(rows),
        row_seeds=[100 * k + 10 * g + i for g, i in rows],
    )


LOTS = [[0, 2, 4], [4, 4, 1], [3, 3, 0]]


@pytest.mark.parametrize(
    ("draws", "kept", "stats"),
    [
        (10, ["0.1", "1.2", "2.0"], (3, 5 / 9, 0.0)),
        (2, ["0.1", "1.2", "0.0"], (2, 4 / 6, 1 / 3)),
        (1, ["0.1", "0.0", "0.2"], (1, 2 / 3, 2 / 3)),
    ],
)
def test_refill_drops_equal_groups_and_draws_others(draws: int, kept: list[str], stats: tuple[float, ...]) -> None:
    """Mixed groups in the order drawn; too few after the last lot: filled up with groups passed over."""
    rollout, got = refilled(lambda k: lot(k, LOTS[k]), Refill(draws=draws), prompts=3, size=4)
    assert ids(rollout.problems) == kept
    assert rollout.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert rollout.texts == [f"{p}.{i}" for p in kept for i in range(4)]
    assert [100 * int(t[0]) + 10 * int(t[2]) + int(t[4]) for t in rollout.texts] == rollout.row_seeds
    assert (got["refill/lots"], got["refill/equal_groups_drawn"], got["refill/short"]) == pytest.approx(stats)


def test_without_refill_one_lot_is_drawn() -> None:
    rollout, got = refilled(lambda k: lot(k, LOTS[k]), None, prompts=3, size=4)
    assert ids(rollout.problems) == ["0.0", "0.1", "0.2"]
    assert got == {}


def test_refilled_lots_ask_other_problems_with_other_seeds() -> None:
    training = make_training(prompts=4, group=2)
    feed = Feed(PROBLEMS, 1, 0, None)
    lots = [draw(3, feed, Echo(), Letters(), training, (2,), start=5 + 4 * k, draws=k) for k in range(3)]
    assert [ids(x[0]) for x in lots] == [ids(feed.take(5 + 4 * k, 4)) for k in range(3)]
    seeds = [s for x in lots for s in x[3]]
    assert len(set(seeds)) == len(seeds) == 24
    plain = draw(3, feed, Echo(), Letters(), training, (2,))
    assert plain[3] == lots[0][3], "the first lot's seeds are those of a run without refill"


def test_overlong_penalty_written_out() -> None:
    """Limit 20, share 0.2: nothing up to 16 tokens, then -1/4 a token, -1 at the limit. Correctness is kept apart."""
    rollout = lot(0, [2, 1])
    lengths = [3, 16, 17, 18, 19, 20, 1, 20]
    rollout.responses[:] = [tuple(range(n)) for n in lengths]
    got = shape(rollout, Overlong(share=0.2), limit=20)
    assert (got.rewards - got.correct).tolist() == pytest.approx([0, 0, -0.25, -0.5, -0.75, -1, 0, -1])
    assert torch.equal(got.correct, rollout.correct)
    assert shape(rollout, None, 20) is rollout

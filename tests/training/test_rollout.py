"""Which problems, which samples: decided by hashes, repeated by none but their own place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.training.conftest import make_training
from tokencredit.sampling import Completion, Params, Request
from tokencredit.training.rollout import Feed, draw, grade

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

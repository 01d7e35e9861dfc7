"""What a rollout leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.training.conftest import make_rollout, make_training
from tests.training.test_update import METHODS, sources
from tokencredit.model.policy import Policy
from tokencredit.problems.categories import Categoriser
from tokencredit.study.tables import SCHEMAS
from tokencredit.training.records import category_metrics, kept_rows, rollout_rows, token_rows
from tokencredit.training.update import Batch, prepare


class Words:
    """A prompter whose tokens are words by their id: three categories."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [(" wait", " 7", " apple")[t % 3] for t in tokens]


@pytest.fixture
def make_batch(make_policy: Callable[..., Policy]) -> Callable[[str], Batch]:
    def make(name: str) -> Batch:
        rollout = make_rollout()
        return prepare(make_policy(), rollout, METHODS[name], make_training(), 1, sources(rollout), {})

    return make


def of(rows: list[dict[str, Any]], row: int) -> list[dict[str, Any]]:
    return [r for r in rows if (r["group"], r["sample"]) == divmod(row, 4)]


def test_rows_have_the_tables_columns_and_every_token(make_batch: Callable[[str], Batch]) -> None:
    batch = make_batch("scapo")
    rows = token_rows(batch, 2, 6, Words(), Categoriser())  # type: ignore[arg-type]
    assert set(rows[0]) == {c.name for c in SCHEMAS["tokens"]}
    assert set(rollout_rows(batch, 2, 6)[0]) == {c.name for c in SCHEMAS["rollouts"]}
    for row in range(8):
        mine = of(rows, row)
        assert [r["token_id"] for r in mine] == list(batch.rollout.responses[row])
        assert [r["position"] for r in mine] == list(range(len(mine)))
        assert [r["credit"] for r in mine] == batch.advantage[row, : len(mine)].tolist()
        assert all(0 <= r["drift"] <= 2 for r in mine)
    assert token_rows(make_batch("grpo"), 1, 0, Words(), Categoriser())[0]["drift"] is None  # type: ignore[arg-type]


def test_a_group_with_both_rewards_is_always_kept(make_batch: Callable[[str], Batch]) -> None:
    """The first group has equal rewards: there is nothing to look at in its credit."""
    batch = make_batch("grpo")
    assert kept_rows(batch, 1) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert kept_rows(batch, 2) == list(range(8))
    assert kept_rows(batch, 0) == []


def test_even_credit_gives_every_category_its_share(make_batch: Callable[[str], Batch]) -> None:
    """GRPO on one response: |A| is the same at every token."""
    batch = make_batch("grpo")
    batch.loss_mask[:] = False
    batch.loss_mask[5] = batch.mask[5]
    shares = category_metrics(batch, Words(), Categoriser())  # type: ignore[arg-type]
    assert set(shares) <= {"credit_share/reflection_marker", "credit_share/number", "credit_share/word"}
    assert all(v == pytest.approx(1.0) for v in shares.values())


def test_shares_written_out(make_batch: Callable[[str], Batch]) -> None:
    batch = make_batch("mcpo")
    got = category_metrics(batch, Words(), Categoriser())  # type: ignore[arg-type]
    mass, count = [0.0] * 3, [0] * 3
    for row, tokens in enumerate(batch.rollout.responses):
        for t, token in enumerate(tokens):
            mass[token % 3] += abs(batch.advantage[row, t].item())
            count[token % 3] += 1
    for kind, name in enumerate(("reflection_marker", "number", "word")):
        want = (mass[kind] / sum(mass)) / (count[kind] / sum(count))
        assert got[f"credit_share/{name}"] == pytest.approx(want)


def test_no_credit_no_shares(make_batch: Callable[[str], Batch]) -> None:
    batch = make_batch("grpo")
    batch.advantage.zero_()
    assert category_metrics(batch, Words(), Categoriser()) == {}  # type: ignore[arg-type]

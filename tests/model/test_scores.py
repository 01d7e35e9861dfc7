"""Token scores in tiles against the plain computation from full logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencredit.model.scores import token_scores


def plain(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, temperature: float, bias=None):
    """(log-probability, entropy, margin) from full logits, by the textbook."""
    logits = (hidden @ head.t() + (0 if bias is None else bias)) / temperature
    p = torch.softmax(logits, -1)
    logp = torch.log_softmax(logits, -1)
    top = p.sort(-1, descending=True).values
    return logp.gather(-1, targets[:, None]).squeeze(-1), -(p * logp).sum(-1), top[:, 0] - top[:, 1]


def example(m: int, d: int, v: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden, head = (torch.randn(s, d, generator=g, dtype=torch.float64) for s in (m, v))
    return hidden, head, torch.randint(v, (m,), generator=g)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 9), v=st.integers(2, 23), tile=st.integers(1, 60), temperature=st.sampled_from([0.5, 1.0, 1.7]))
def test_equals_full_computation_whatever_the_tile(m: int, v: int, tile: int, temperature: float) -> None:
    hidden, head, targets = example(m, 5, v, seed=m * 100 + v)
    got = token_scores(hidden, head, targets, temperature, tile=tile)
    for a, b in zip((got.logprob, got.entropy, got.margin), plain(hidden, head, targets, temperature), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("train_head", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tile", [7, 22, 10_000])
def test_gradient_in_double(train_head: bool, with_bias: bool, tile: int) -> None:
    hidden, head, targets = example(6, 4, 11)
    bias = torch.linspace(-1, 1, 11, dtype=torch.float64, requires_grad=train_head) if with_bias else None
    hidden.requires_grad_(True)
    head.requires_grad_(train_head)
    assert torch.autograd.gradcheck(lambda h, w: token_scores(h, w, targets, 1.3, bias, tile).logprob, (hidden, head))
    if bias is not None and train_head:
        assert torch.autograd.gradcheck(lambda b: token_scores(hidden, head, targets, 1.3, b, tile).logprob, (bias,))


def test_tied_head_adds_both_gradients() -> None:
    """An embedding used as input and as head gets the sum of both paths, as in the full computation."""
    _, weight, targets = example(5, 4, 9)
    ids = torch.tensor([1, 3, 3, 0, 8])
    grads = []
    for tiled in (True, False):
        w = weight.clone().requires_grad_(True)
        hidden = torch.tanh(w[ids])
        logprob = token_scores(hidden, w, targets, tile=9).logprob if tiled else plain(hidden, w, targets, 1.0)[0]
        (logprob * torch.arange(1.0, 6.0, dtype=torch.float64)).sum().backward()
        grads.append(w.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-12)


def test_tie_has_margin_zero_and_shift_changes_nothing() -> None:
    head = torch.eye(4, dtype=torch.float64)
    hidden = torch.tensor([[2.0, 2.0, 0.0, 1.0], [5.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([0, 0])
    a = token_scores(hidden, head, targets)
    b = token_scores(hidden + 7.5, head, targets)
    assert a.margin[0] == 0
    torch.testing.assert_close(a.margin, b.margin, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(a.logprob, b.logprob, rtol=1e-12, atol=1e-12)


def test_only_the_log_probability_carries_a_gradient() -> None:
    hidden, head, targets = example(3, 4, 6)
    scores = token_scores(hidden.requires_grad_(True), head, targets)
    assert scores.logprob.requires_grad
    assert not scores.margin.requires_grad
    assert not scores.entropy.requires_grad


def test_without_statistics_the_log_probability_and_its_gradient_are_the_same_to_the_bit() -> None:
    """The ratio of an update to its rollout's scores is exactly 1 only if both passes round alike."""
    g = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(50, 16, generator=g), torch.randn(301, 16, generator=g)
    targets = torch.randint(301, (50,), generator=g)
    seen = []
    for statistics in (True, False):
        h, w = hidden.clone().requires_grad_(True), head.clone().requires_grad_(True)
        scores = token_scores(h, w, targets, 0.7, tile=7 * 301, statistics=statistics)
        scores.logprob.sum().backward()
        seen.append((scores.logprob, h.grad, w.grad))
        assert len(scores.entropy) == len(scores.margin) == (50 if statistics else 0)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_no_positions() -> None:
    hidden, head, targets = example(3, 4, 6)
    scores = token_scores(hidden[:0].requires_grad_(True), head.requires_grad_(True), targets[:0])
    scores.logprob.sum().backward()
    assert scores.logprob.shape == (0,)
    assert head.grad is not None
    assert head.grad.abs().sum() == 0


def test_float32_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[300.0, 0.0]], requires_grad=True)
    head = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    scores = token_scores(hidden, head, torch.tensor([1]))
    scores.logprob.sum().backward()
    assert scores.logprob.item() == -600.0
    assert scores.entropy.item() == 0.0
    assert scores.margin.item() == 1.0
    assert torch.isfinite(hidden.grad).all()

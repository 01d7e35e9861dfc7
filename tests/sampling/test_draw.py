"""The distribution that is drawn from, against independently computed probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from tokencredit.sampling.draw import draw, noise
from tokencredit.sampling.types import Params

ROWS = 30_000


def uniform(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(noise(seed, rows))


def logits_of(vocab: int, spread: float, seed: int = 1) -> torch.Tensor:
    return spread * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


def fits(tokens: torch.Tensor, probabilities: np.ndarray) -> bool:
    """Chi-square at the 0.1 % level; tokens expected fewer than 5 times are taken together."""
    assert not set(tokens.tolist()) & set(np.flatnonzero(probabilities == 0).tolist())
    counts = np.bincount(tokens.numpy(), minlength=len(probabilities)).astype(float)
    expected = probabilities * len(tokens)
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    return bool(chisquare(counts[keep], expected[keep] * counts[keep].sum() / expected[keep].sum()).pvalue > 1e-3)


@pytest.mark.parametrize("vocab", [2, 5, 300, 640, 1001])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_plain_sampling(vocab: int, temperature: float) -> None:
    logits = logits_of(vocab, 1.5)
    tokens, logprobs = draw(logits.repeat(ROWS, 1), uniform(ROWS), Params(1, temperature))
    expected = (logits.double() / temperature).log_softmax(-1)
    assert fits(tokens, expected.exp().numpy())
    torch.testing.assert_close(logprobs.double(), expected[tokens], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("vocab", "top_p", "spread"), [(5, 0.5, 1.0), (300, 0.9, 0.2), (300, 0.9, 3.0), (900, 0.3, 1.0)]
)
def test_top_p(vocab: int, top_p: float, spread: float) -> None:
    logits = logits_of(vocab, spread)
    probabilities = logits.double().softmax(-1).numpy()
    order = np.argsort(-probabilities)
    size = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1  # the last one reaches top_p
    nucleus = np.zeros(vocab)
    nucleus[order[:size]] = probabilities[order[:size]] / probabilities[order[:size]].sum()
    tokens, logprobs = draw(logits.repeat(ROWS, 1), uniform(ROWS), Params(1, 1.0, top_p))
    assert fits(tokens, nucleus)
    expected = torch.from_numpy(np.log(probabilities))[tokens]
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)


def test_rows_have_their_own_nucleus() -> None:
    """A peaked row beside a flat one whose nucleus holds nearly the whole vocabulary."""
    flat, peaked = torch.zeros(900), torch.zeros(900)
    peaked[700] = 20.0
    tokens, _ = draw(torch.stack([flat, peaked]).repeat(3000, 1), uniform(6000), Params(1, 1.0, 0.99))
    assert set(tokens[1::2].tolist()) == {700}
    assert len(set(tokens[::2].tolist())) > 800


def test_impossible_tokens_are_never_drawn() -> None:
    """Numbers at the very ends, and zero probability at both ends of the vocabulary and of runs."""
    ends = torch.tensor([0.0, np.nextafter(1.0, 0.0), 0.25, 0.5], dtype=torch.float64)
    for vocab, possible in ((400, [3, 127, 256, 390]), (900, [130, 511, 512, 890])):
        logits = torch.full((4, vocab), -torch.inf)
        logits[:, possible] = 0.0
        assert draw(logits, ends, Params(1))[0].tolist() == [possible[i] for i in (0, 3, 1, 2)]


def test_suppressed_tokens() -> None:
    logits = logits_of(300, 1.0)
    rest = logits.double().clone()
    rest[[7, 200]] = -torch.inf
    tokens, logprobs = draw(logits.repeat(ROWS, 1), uniform(ROWS), Params(1, suppress=(7, 200)))
    assert fits(tokens, rest.softmax(-1).numpy())
    torch.testing.assert_close(logprobs.double(), rest.log_softmax(-1)[tokens], rtol=0, atol=1e-5)


def test_greedy_takes_the_largest() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(2))
    tokens, _ = draw(logits.clone(), uniform(50), Params(1, temperature=0))
    assert tokens.tolist() == logits.argmax(-1).tolist()


def test_large_vocabularies_are_drawn_in_blocks() -> None:
    """Many blocks of rows give what each row alone gives."""
    logits = torch.randn(40, 70_001, generator=torch.Generator().manual_seed(3))
    u = uniform(40)
    together = draw(logits.clone(), u, Params(1))
    alone = [draw(logits[i : i + 1].clone(), u[i : i + 1], Params(1)) for i in range(40)]
    assert together[0].tolist() == [int(t) for t, _ in alone]
    cumulated = logits.double().softmax(-1).cumsum(-1)
    for i, token in enumerate(together[0].tolist()):
        assert cumulated[i, token] > u[i] - 1e-6
        assert token == 0 or cumulated[i, token - 1] <= u[i] + 1e-6


def test_noise() -> None:
    assert np.array_equal(noise(5, 10), noise(5, 1000)[:10])
    assert not np.array_equal(noise(5, 10), noise(6, 10))
    assert noise(2**63 - 1, 3).shape == (3,)
    first = np.array([noise(seed, 3) for seed in range(3000)])
    for t in range(3):
        assert kstest(first[:, t], "uniform").pvalue > 1e-3  # over neighbouring seeds
    assert abs(np.corrcoef(first.T) - np.eye(3)).max() < 0.06

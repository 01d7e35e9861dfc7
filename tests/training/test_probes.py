"""Masked spans and perturbed prompts against plain forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.training.conftest import make_rollout, make_training
from tokencredit.model.policy import Policy
from tokencredit.study.methods import Method, SpanCredit
from tokencredit.training.probes import Sources, masked_spans
from tokencredit.training.update import prepare

SETTINGS = SpanCredit(kind="spans", shortest=2, longest=4)


def pieces(tokens: Sequence[int]) -> list[str]:
    """Text that makes the last third of a response its answer, and everything before it one sentence."""
    answer = max(1, len(tokens) * 2 // 3)
    return ["\\boxed{" if t == answer else "x" for t in range(len(tokens))] if len(tokens) > 2 else ["x"] * len(tokens)


def answer_logprob(policy: Policy, prompt: tuple, response: tuple, start: int, hidden: tuple[int, int] | None) -> float:
    """log p(response[start:]) with a mask written out by hand: no query but itself sees a hidden position."""
    ids = torch.tensor([[*prompt, *response]])
    n = ids.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    if hidden:
        columns = torch.zeros(n, dtype=torch.bool)
        columns[len(prompt) + hidden[0] : len(prompt) + hidden[1]] = True
        seen &= ~columns[None]
    bias = torch.zeros(n, n, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)
    logits = policy.model(input_ids=ids, attention_mask=bias[None, None]).logits[0]
    logp = torch.log_softmax(logits, -1)
    return sum(logp[len(prompt) + t - 1, response[t]].item() for t in range(start, len(response)))


@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_drop_is_the_loss_of_the_answer_without_the_span(budget: int, make_policy: Callable[..., Policy]) -> None:
    policy, rollout = make_policy(), make_rollout()
    batch = prepare(policy, rollout, Method(), make_training(), 1, Sources(), {})
    advantage = batch.group_advantage
    spans, answers = masked_spans(policy, rollout, batch.old, advantage, SETTINGS, pieces, budget)
    checked = 0
    for row, (found, start) in enumerate(zip(spans, answers, strict=True)):
        if advantage[row] == 0:
            assert found == []
            assert start is None
        for span in found:
            prompt, response = rollout.prompts[row], rollout.responses[row]
            with torch.no_grad():
                whole = answer_logprob(policy, prompt, response, start, None)
                without = answer_logprob(policy, prompt, response, start, (span.start, span.stop))
            assert span.drop == pytest.approx(whole - without, abs=1e-9)
            checked += 1
    assert checked >= 4


def test_positions_stay_when_a_span_is_hidden(make_policy: Callable[..., Policy]) -> None:
    """Hiding changes what is attended to, not where tokens stand: deleting the span would score differently."""
    policy, rollout = make_policy(), make_rollout()
    row = max(range(16), key=lambda r: len(rollout.responses[r]))
    prompt, response = rollout.prompts[row], rollout.responses[row]
    with torch.no_grad():
        hidden = policy.score([prompt], [response], "probe", [4], [(0, 2)]).logprob.sum().item()
        deleted = policy.score([prompt], [response[2:]], "probe", [2]).logprob.sum().item()
    assert abs(hidden - deleted) > 1e-6


def test_scores_from_a_start_are_the_tail_of_all_scores(make_policy: Callable[..., Policy]) -> None:
    policy, rollout = make_policy(), make_rollout()
    rows = [0, 5, 9]
    prompts, responses = ([table[r] for r in rows] for table in (rollout.prompts, rollout.responses))
    starts = [len(r) // 2 for r in responses]
    with torch.no_grad():
        whole = policy.score(prompts, responses, "probe").logprob.split([len(r) for r in responses])
        tail = policy.score(prompts, responses, "probe", starts).logprob
    want = torch.cat([w[s:] for w, s in zip(whole, starts, strict=True)])
    torch.testing.assert_close(tail, want, rtol=1e-12, atol=1e-12)

"""Masked spans and perturbed prompts against plain forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.training.conftest import make_rollout, make_training
from tokencredit.model.policy import Policy
from tokencredit.study.methods import Method, SpanCredit
from tokencredit.training.probes import Sources, engine_gap, masked_spans, perturbed_logprobs
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


KINDS = ("paraphrase", "typo_noise")


def test_an_engine_may_read_the_perturbed_prompts(make_policy: Callable[..., Policy]) -> None:
    """Its readings fill the same places; the gap is measured against the trainer's own, and told as a metric."""
    policy, rollout = make_policy(), make_rollout()
    names = [p["problem_id"] for p in rollout.problems]
    prompts = {(n, k): (3 + i, 5, 7 + j) for i, n in enumerate(names) for j, k in enumerate(KINDS)}
    del prompts[names[1], KINDS[0]]

    def off_by(shift: float) -> Callable[..., list[list[float]]]:
        def forced(asked: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
            with torch.no_grad():
                flat = policy.score(asked, responses, "probe").logprob
            return [(part + shift).tolist() for part in flat.split([len(r) for r in responses])]

        return forced

    exact = perturbed_logprobs(policy, rollout, KINDS, prompts, 60)
    read = perturbed_logprobs(policy, rollout, KINDS, prompts, 60, off_by(0.0))
    torch.testing.assert_close(read, exact, rtol=0, atol=1e-9, equal_nan=True)
    assert read[0].isnan().any() and not read[1].isnan().any()
    moved = perturbed_logprobs(policy, rollout, KINDS, prompts, 60, off_by(0.25))
    gap = engine_gap(policy, rollout, KINDS, prompts, 60, moved)
    assert (gap.mean, gap.largest) == (pytest.approx(0.25, abs=1e-9), pytest.approx(0.25, abs=1e-9)) and gap.tokens > 3
    method = Method.model_validate({"credit": [{"kind": "semifactual", "strength": 0.01, "steps": 4, "kinds": KINDS}]})
    for forced, told in ((None, None), (off_by(0.25), 0.25)):
        metrics = prepare(policy, rollout, method, make_training(), 1, Sources(prompts, forced=forced), {}).metrics
        assert metrics.get("probe/engine_gap") == (told if told is None else pytest.approx(told, abs=1e-9))

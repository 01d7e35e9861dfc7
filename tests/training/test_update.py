"""The update against an independent float64 computation, and its equivalence classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.training.conftest import make_rollout, make_training
from tests.training.test_probes import pieces
from tokencredit.model.policy import Policy
from tokencredit.study.config import Training
from tokencredit.study.methods import (
    Advantage,
    EntropyCredit,
    FutureCredit,
    MarginCredit,
    Method,
    OracleCredit,
    SemifactualCredit,
    SequenceClip,
    SoftGate,
    SpanCredit,
    TokenClip,
)
from tokencredit.training.probes import Sources, perturbed_logprobs
from tokencredit.training.rollout import Rollout
from tokencredit.training.update import NotFinite, prepare, update

KINDS = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
METHODS = {
    "grpo": Method(),
    "mcpo": Method(credit=(MarginCredit(kind="margin"),)),
    "scapo": Method(credit=(SemifactualCredit(kind="semifactual", strength=0.1),)),
    "both": Method(
        credit=(MarginCredit(kind="margin"), SemifactualCredit(kind="semifactual", strength=0.1)),
        objective=TokenClip(dual=3.0),
    ),
    "gspo": Method(objective=SequenceClip(kind="sequence_clip", low=0.1, high=0.1)),
    "sapo": Method(objective=SoftGate(kind="soft_gate")),
    "fipo": Method(credit=(FutureCredit(kind="future_kl"),)),
    "entropy": Method(credit=(EntropyCredit(kind="entropy"),)),
    "dr_grpo": Method(advantage=Advantage(scale="none"), reduction="constant"),
    "cf_grpo": Method(credit=(SpanCredit(kind="spans", shortest=2),)),
    "oracle": Method(credit=(OracleCredit(kind="oracle"),)),
    "by_sequence": Method(reduction="sequence_mean"),
}


def perturbed_prompts(rollout: Rollout) -> dict[tuple[str, str], tuple[int, ...]]:
    """Every problem's prompt with one more token in front, a different one for each kind."""
    group = len(rollout.prompts) // len(rollout.problems)
    return {
        (p["problem_id"], kind): (7 + k, *rollout.prompts[i * group])
        for i, p in enumerate(rollout.problems)
        for k, kind in enumerate(KINDS)
    }


def effects(rollout: Rollout, old: torch.Tensor, wanted: torch.Tensor, settings: OracleCredit) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.where(wanted[:, None], torch.randn(old.shape, generator=g, dtype=torch.float64), torch.nan)


def sources(rollout: Rollout) -> Sources:
    return Sources(perturbed_prompts(rollout), pieces, effects)


def gradients(policy: Policy) -> list[torch.Tensor]:
    return [p.grad.clone() for p in policy.parameters()]


class Recorder(torch.optim.SGD):
    """Keeps the gradients it was given (before zero_grad) and takes no step."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def run(policy: Policy, rollout: Rollout, method: Method, training: Training, which: int = 0) -> tuple[list, dict]:
    batch = prepare(policy, rollout, method, training, 1, sources(rollout), {})
    recorder = Recorder(policy.parameters(), lr=1.0)
    stats = update(policy, recorder, batch, batch.minibatches[which], method, max_grad_norm=1e9)
    return recorder.seen, stats


def reference_loss(model: torch.nn.Module, rollout: Rollout, rows: list[int], old: dict, tokens: dict) -> torch.Tensor:
    """GRPO's clipped token-mean written out: one response at a time, full logits, no padding."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        ids = torch.tensor([[*rollout.prompts[row], *rollout.responses[row]]])
        logp = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        start = len(rollout.prompts[row])
        for t, token in enumerate(rollout.responses[row]):
            new = logp[start + t - 1, token]
            r, a = torch.exp(new - old[row][t]), tokens[row][t]
            value = torch.minimum(r * a, r.clamp(0.8, 1.28) * a)
            if a < 0:
                value = torch.maximum(value, 10 * a)
            total, count = total - value, count + 1
    return total / count


def close(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float) -> None:
    scale = max(float(x.abs().max()) for x in a)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * scale)


def test_gradient_of_the_second_update_equals_the_formula(make_policy: Callable[..., Policy]) -> None:
    """After the weights have moved: ratios differ from 1, clipping binds, and the loss is the published one."""
    policy, rollout, training = make_policy(), make_rollout(), make_training()
    batch = prepare(policy, rollout, Method(), training, 1, Sources(), {})
    with torch.no_grad():
        for i, parameter in enumerate(policy.parameters()):
            parameter += 0.05 * torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) + i).view_as(parameter)
    minibatch = batch.minibatches[1]
    old = {r: batch.old[r] for r in minibatch.rows}
    group_rewards = rollout.rewards.view(4, 4)
    a = (group_rewards - group_rewards.mean(1, keepdim=True)) / (group_rewards.std(1, keepdim=True) + 1e-6)
    tokens = {r: a.flatten()[r].expand(50) for r in minibatch.rows}
    recorder = Recorder(policy.parameters(), lr=1.0)
    stats = update(policy, recorder, batch, minibatch, Method(), 1e9)
    policy.model.zero_grad()
    loss = reference_loss(policy.model, rollout, minibatch.rows, old, tokens)
    loss.backward()
    assert stats["clipped_high"] + stats["clipped_low"] > 0.03
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-9)
    close(gradients(policy), recorder.seen, 1e-9)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [1, 40, 60, 10_000])
def test_gradient_does_not_depend_on_micro_batches(name: str, budget: int, make_policy: Callable[..., Policy]) -> None:
    """One row at a time, two or three, or all at once: equal to 1e-12 in float64."""
    rollout, method = make_rollout(), METHODS[name]
    whole, stats = run(make_policy(), rollout, method, make_training())
    split, more = run(make_policy(), rollout, method, make_training(microbatch_tokens=budget))
    close(whole, split, 1e-12)
    assert stats["loss"] == pytest.approx(more["loss"], rel=1e-9)


def test_float32_within_1e_6(make_policy: Callable[..., Policy]) -> None:
    rollout = make_rollout()
    a, _ = run(make_policy(dtype=torch.float32), rollout, Method(), make_training())
    b, _ = run(make_policy(dtype=torch.float32), rollout, Method(), make_training(microbatch_tokens=40))
    close(a, b, 2e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [30, 10_000])
def test_ratio_is_exactly_one_at_the_first_update(name: str, budget: int, make_policy: Callable[..., Policy]) -> None:
    training = make_training(microbatch_tokens=budget)
    policy = make_policy(dtype=torch.float32)
    _, stats = run(policy, make_rollout(8, 4), METHODS[name], make_training(prompts=8, microbatch_tokens=budget))
    assert training.updates == 2
    assert stats["ratio_max"] == 1.0
    assert stats["kl_to_rollout"] == 0.0


def test_idle_rows_stay_in_the_denominator(make_policy: Callable[..., Policy]) -> None:
    """The first group has equal rewards: no gradient from it, but its tokens count in the mean."""
    policy, rollout, training = make_policy(), make_rollout(), make_training()
    batch = prepare(policy, rollout, Method(), training, 1, Sources(), {})
    minibatch = batch.minibatches[0]
    assert {r for b in minibatch.idle for r in b} >= {0, 1, 2, 3}
    policy.forwards.clear()
    recorder = Recorder(policy.parameters(), lr=1.0)
    update(policy, recorder, batch, minibatch, Method(), 1e9)
    assert policy.forwards["update"] == sum(map(len, minibatch.learning)) < len(minibatch.rows)
    all_tokens = sum(len(rollout.responses[r]) for r in minibatch.rows)
    # at ratio 1 the loss is -sum(A) / tokens
    expected = -sum(float(batch.group_advantage[r]) * len(rollout.responses[r]) for r in minibatch.rows) / all_tokens
    stats = update(policy, recorder, batch, minibatch, Method(), 1e9)
    assert stats["loss"] == pytest.approx(expected, rel=1e-6)


def test_batch_of_equal_rewards_gives_a_zero_step(make_policy: Callable[..., Policy]) -> None:
    policy, rollout = make_policy(), make_rollout()
    rollout.rewards.fill_(1.0)
    before = [p.detach().clone() for p in policy.parameters()]
    batch = prepare(policy, rollout, Method(), make_training(), 1, Sources(), {})
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, weight_decay=0.0)
    stats = update(policy, optimizer, batch, batch.minibatches[0], Method(), 1.0)
    assert stats["loss"] == 0
    assert stats["grad_norm"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_all_truncated_and_dropped(make_policy: Callable[..., Policy]) -> None:
    """Nothing in the loss: zero loss, finite zero gradient, the step is still taken and recorded."""
    policy, rollout = make_policy(), make_rollout()
    rollout.finish[:] = ["length"] * len(rollout.finish)
    gradient, stats = run(policy, rollout, Method(), make_training(truncated="drop"))
    assert stats["loss"] == 0
    assert all((g == 0).all() for g in gradient)


def test_dropped_response_stays_in_its_groups_baseline(make_policy: Callable[..., Policy]) -> None:
    policy, rollout = make_policy(), make_rollout()
    kept, dropped = (
        prepare(policy, rollout, Method(), make_training(truncated=t), 1, Sources(), {}) for t in ("keep", "drop")
    )
    torch.testing.assert_close(kept.advantage, dropped.advantage)
    assert kept.loss_mask[5].any()
    assert not dropped.loss_mask[5].any()


def test_credit_changes_only_what_it_says(make_policy: Callable[..., Policy]) -> None:
    """MCPO runs no forward more than GRPO; SCAPO runs K more rows per response while active, none afterwards."""
    rollout = make_rollout()
    counts = {}
    for name, step in (("grpo", 1), ("mcpo", 1), ("scapo", 1), ("scapo", 121)):
        policy = make_policy()
        prepare(policy, rollout, METHODS[name], make_training(), step, sources(rollout), {})
        counts[name, step] = dict(policy.forwards)
    assert counts["grpo", 1] == counts["mcpo", 1] == counts["scapo", 121] == {"score": 16}
    assert counts["scapo", 1] == {"score": 16, "probe": 64}


def test_probe_is_teacher_forced_under_the_perturbed_prompt(make_policy: Callable[..., Policy]) -> None:
    policy, rollout = make_policy(), make_rollout()
    prompts = perturbed_prompts(rollout)
    del prompts["p2", "typo_noise"]
    got = perturbed_logprobs(policy, rollout, KINDS, prompts, budget=50)
    for row in (0, 6, 15):
        ids = torch.tensor([[*prompts[f"p{row // 4}", "paraphrase"], *rollout.responses[row]]])
        logp = torch.log_softmax(policy.model(input_ids=ids).logits[0].double(), -1)
        start = ids.shape[1] - len(rollout.responses[row])
        want = torch.stack([logp[start + t - 1, token] for t, token in enumerate(rollout.responses[row])])
        torch.testing.assert_close(got[0, row, : len(want)].double(), want, rtol=1e-5, atol=1e-5)
    assert got[1, 8:12].isnan().all()
    assert not got[1, :8].isnan().any()


def test_pad_equal_to_eos_and_missing_eos(make_policy: Callable[..., Policy]) -> None:
    """The mask comes from lengths: a response that ends without EOS, or holds the pad id, is scored whole."""
    rollout = make_rollout()
    rollout.responses[4] = (0, 5, 0)
    rollout.sampler_logprobs[4] = (0.0, 0.0, 0.0)
    batch = prepare(make_policy(), rollout, Method(), make_training(), 1, Sources(), {})
    assert batch.mask[4].sum() == 3
    assert (batch.old[4, :3] < 0).all()
    assert (batch.old[4, 3:] == 0).all()


def test_not_finite_stops_before_any_weight_changes(make_policy: Callable[..., Policy]) -> None:
    policy, rollout = make_policy(), make_rollout()
    batch = prepare(policy, rollout, Method(), make_training(), 1, Sources(), {})
    batch.advantage = batch.advantage.clone()
    batch.advantage[5] = torch.nan
    batch.minibatches[0].learning[0][:] = sorted({*batch.minibatches[0].learning[0], 5})
    before = [p.detach().clone() for p in policy.parameters()]
    with pytest.raises(NotFinite):
        update(policy, torch.optim.SGD(policy.parameters(), lr=1.0), batch, batch.minibatches[0], Method(), 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_temperature_divides_the_logits(make_policy: Callable[..., Policy]) -> None:
    rollout = make_rollout(2, 2)
    policy = make_policy(temperature=0.7)
    with torch.no_grad():
        scores = policy.score(rollout.prompts[:1], rollout.responses[:1], "score")
        ids = torch.tensor([[*rollout.prompts[0], *rollout.responses[0]]])
        logp = torch.log_softmax(policy.model(input_ids=ids).logits[0] / 0.7, -1)
    start = len(rollout.prompts[0])
    want = [logp[start + t - 1, token].item() for t, token in enumerate(rollout.responses[0])]
    assert scores.logprob.tolist() == pytest.approx(want, abs=1e-9)


def test_untied_head_is_trained_too(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tied=False)
    gradient, _ = run(policy, make_rollout(), Method(), make_training(), which=1)
    names = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert gradient[names.index("lm_head.weight")].abs().sum() > 0


def test_truncated_importance_sampling_weighs_each_tokens_loss(make_policy: Callable[..., Policy]) -> None:
    """The first update's gradient is that of -sum_t min(p / q, cap) A log p_t / tokens, worked out on full logits."""
    rollout, training = (
        make_rollout(),
        make_training(updates=1, allow_single_update=True, sampler_correction="truncated"),
    )
    policy = make_policy()
    exact = [full_logprobs(policy, p, r) for p, r in zip(rollout.prompts, rollout.responses, strict=True)]
    g = torch.Generator().manual_seed(5)
    sampled = [e.detach() - torch.randn(len(e), generator=g, dtype=torch.float64) for e in exact]
    rollout = dataclasses.replace(rollout, sampler_logprobs=[tuple(x.tolist()) for x in sampled])
    batch = prepare(policy, rollout, Method(), training, 1, sources(rollout), {})
    optimizer = Recorder(policy.parameters(), lr=0.0)
    update(policy, optimizer, batch, batch.minibatches[0], Method(), 1e9)

    advantage = batch.group_advantage
    weights = [(e.detach() - q).exp().clamp(max=2.0) for e, q in zip(exact, sampled, strict=True)]
    loss = -sum((a * w * e).sum() for a, w, e in zip(advantage, weights, exact, strict=True)) / sum(map(len, exact))
    wanted = torch.autograd.grad(loss, list(policy.parameters()))
    for got, want in zip(optimizer.seen, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    flat = torch.cat([(e.detach() - q).exp() for e, q in zip(exact, sampled, strict=True)])
    assert batch.metrics["sampler_capped"] == pytest.approx((flat > 2).double().mean().item())
    gaps = [(e.detach() - q) for e, q in zip(exact, sampled, strict=True)]
    assert batch.metrics["sampler_mismatch"] == pytest.approx(torch.cat(gaps).abs().mean().item())
    assert batch.metrics["sampler_mismatch_sequence"] == pytest.approx(
        torch.stack([x.sum().abs() for x in gaps]).mean().item()
    )


def test_an_engine_that_computes_as_the_trainer_is_not_corrected(make_policy: Callable[..., Policy]) -> None:
    rollout, policy = make_rollout(), make_policy()
    same = [full_logprobs(policy, p, r).tolist() for p, r in zip(rollout.prompts, rollout.responses, strict=True)]
    rollout = dataclasses.replace(rollout, sampler_logprobs=[tuple(x) for x in same])
    batch = prepare(policy, rollout, Method(), make_training(sampler_correction="truncated"), 1, sources(rollout), {})
    assert batch.correction is not None
    torch.testing.assert_close(batch.correction, torch.ones_like(batch.correction), rtol=0, atol=1e-12)
    assert batch.metrics["sampler_capped"] == 0.0


def full_logprobs(policy: Policy, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """Log-probabilities [T] of a response, from the model's whole logits."""
    ids = torch.tensor([[*prompt, *response]])
    logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]

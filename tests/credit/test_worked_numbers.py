"""Numbers worked out independently in float64: 2 responses x 3 tokens; 'pad' drops the second response's last token."""

from __future__ import annotations

import pytest
import torch

from tokencredit.credit import (
    Signals,
    Span,
    group_advantage,
    reduce,
    selected_tokens,
    token_advantages,
    token_shares,
    update_losses,
)
from tokencredit.credit.future import future_factor, future_kl
from tokencredit.credit.margin import weights
from tokencredit.credit.semifactual import drift, stability
from tokencredit.credit.spans import importance, span_weights
from tokencredit.study.methods import (
    Advantage,
    EntropyCredit,
    FutureCredit,
    MarginCredit,
    Method,
    SemifactualCredit,
    SequenceClip,
    SoftGate,
    SpanCredit,
    TokenClip,
)

OLD = torch.tensor([[-0.2, -1.1, -0.05], [-0.7, -4, -0.4]], dtype=torch.float64)
NEW = torch.tensor([[-0.1, -0.7, -0.06], [-0.95, -1.5, -0.35]], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 0.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0])
FULL = torch.ones(2, 3, dtype=torch.bool)
PAD = torch.tensor([[True, True, True], [True, True, False]])
MASKS = {"full": FULL, "pad": PAD}
# Margins whose scores under 0.2 / 0.8 are 0, 1, 0 and 0.41667, 1, 0.
MARGIN = torch.tensor([[0.9, 0.1, 0.95], [0.55, 0.05, 0.85]], dtype=torch.float64)
# Log-probabilities under two perturbed prompts, from the drifts of the worked example.
PERTURBED = torch.stack(
    [
        OLD + torch.tensor([[-0.01, 0.5, 0.0], [0.02, 0.8, 0.03]], dtype=torch.float64),
        OLD + torch.tensor([[0.02, -0.3, 0.005], [0.0, -1.2, 0.04]], dtype=torch.float64),
    ]
)


# Entropies whose 80 % quantile is 0.9 over six tokens, and 1.04 over five (linear interpolation).
ENTROPY = torch.tensor([[0.1, 0.9, 0.3], [0.2, 1.6, 0.4]], dtype=torch.float64)


def signals(mask: torch.Tensor, **more: object) -> Signals:
    return Signals(mask, GROUPS, OLD, MARGIN, ENTROPY, row_seeds=(1, 2), **more)  # type: ignore[arg-type]


def loss_of(method: Method, mask: torch.Tensor, **more: object) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, gradient with respect to NEW) of one optimiser step."""
    _, tokens, _ = token_advantages(method, REWARDS, signals(mask, **more))
    new = NEW.clone().requires_grad_(True)
    s = signals(mask, **more)
    chosen = selected_tokens(method, s)[0]
    losses, _ = update_losses(method, new, OLD, tokens, mask)
    loss = reduce(losses, chosen, token_shares(chosen, method.reduction, limit=4))
    loss.backward()
    assert new.grad is not None
    return loss.detach(), new.grad


def close(got: object, want: object) -> None:
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ddof", "want"), [(1, 0.7071057811879616), (0, 0.999998000004)])
def test_group_advantage(ddof: int, want: float) -> None:
    close(group_advantage(REWARDS, GROUPS, Advantage(ddof=ddof)), [want, -want])  # type: ignore[arg-type]


@pytest.mark.parametrize(("mask", "want"), [("full", 0.9989107000453955), ("pad", 1.050020866085816)])
def test_grpo_loss(mask: str, want: float) -> None:
    close(loss_of(Method(), MASKS[mask])[0], want)


GRPO_GRADIENT = {
    "full": [[-0.13024545753026473, 0.0, -0.11667832688910806], [0.0, 0.0, 0.12389331166540174]],
    "pad": [[-0.1562945490807266, 0.0, -0.14001399217811183], [0.0, 0.0, 0.0]],
}


@pytest.mark.parametrize("mask", ["full", "pad"])
def test_grpo_gradient(mask: str) -> None:
    """The reference gradients are central differences: good to about 1e-9."""
    gradient = loss_of(Method(), MASKS[mask])[1]
    torch.testing.assert_close(gradient, torch.tensor(GRPO_GRADIENT[mask], dtype=torch.float64), rtol=0, atol=2e-9)


@pytest.mark.parametrize(
    ("dual", "mask", "want"),
    [
        (None, "full", 1.256119716215602),
        (3.0, "full", 0.173953955326107),
        (None, "pad", 1.3586716854900636),
        (3.0, "pad", 0.06007277242266973),
    ],
)
def test_dual_clip(dual: float | None, mask: str, want: float) -> None:
    close(loss_of(Method(objective=TokenClip(dual=dual)), MASKS[mask])[0], want)


WEIGHTS = {
    ("ratio", "full"): [[0.75, 1.5, 0.75], [0.9622641509433963, 1.358490566037736, 0.679245283018868]],
    ("ratio", "pad"): [[0.75, 1.5, 0.75], [0.8292682926829268, 1.1707317073170733, 0.0]],
    ("additive", "full"): [[2 / 3, 5 / 3, 2 / 3], [0.9444444444444444, 1.527777777777778, 0.5277777777777779]],
    ("additive", "pad"): [[2 / 3, 5 / 3, 2 / 3], [0.7083333333333334, 1.2916666666666667, 0.0]],
}
MCPO_LOSS = {
    ("ratio", "full"): 1.3644044866851581,
    ("ratio", "pad"): 1.2557231556056005,
    ("additive", "full"): 1.5389006735090327,
    ("additive", "pad"): 1.4075910957659645,
}


@pytest.mark.parametrize(("form", "mask"), WEIGHTS)
def test_mcpo(form: str, mask: str) -> None:
    settings = MarginCredit(kind="margin", form=form)  # type: ignore[arg-type]
    close(weights(signals(MASKS[mask]), settings)[0], WEIGHTS[form, mask])
    close(loss_of(Method(credit=(settings,)), MASKS[mask])[0], MCPO_LOSS[form, mask])


DRIFT = [
    [[0.009999916667499971, 0.4898373248074183, 0.0], [0.01999933335999899, 0.7598979245104496, 0.029997750202481625]],
    [[0.019999333359998945, 0.2977700672466359, 0.004999989583359435], [0.0, 1.0740991339960706, 0.03999466751986178]],
]
STABILITY = {
    "full": [
        [0.6427704675248564, -0.53923598077156, 0.6794807558031168],
        [0.6519518815282214, -2.0174369874121467, 0.582469863327512],
    ],
    "pad": [
        [0.7184685223250906, -0.40227017524312875, 0.7531625849859416],
        [0.7268565413260102, -1.7962174733939136, 0.0],
    ],
}
SCAPO_ADVANTAGE = {
    "full": [[0.7071057811879616, 0.7017134213802461, 0.7071057811879616],
             [-0.7071057811879616, -0.7272801510620831, -0.7071057811879616]],
    "pad": [[0.7071057811879616, 0.7030830794355304, 0.7071057811879616],
            [-0.7071057811879616, -0.7250679559219008, -0.0]],
}  # fmt: skip
SCAPO_LOSS = {"full": 1.0336850199279106, "pad": 1.0869750272023169}


@pytest.mark.parametrize("mask", ["full", "pad"])
def test_scapo(mask: str) -> None:
    drifts = drift(OLD, PERTURBED)
    close(drifts, DRIFT)
    close(stability(drifts, MASKS[mask], GROUPS, 1e-6), STABILITY[mask])
    method = Method(credit=(SemifactualCredit(kind="semifactual"),))
    _, tokens, _ = token_advantages(method, REWARDS, signals(MASKS[mask], perturbed=PERTURBED))
    close(torch.where(MASKS[mask], tokens, 0.0), SCAPO_ADVANTAGE[mask])
    close(loss_of(method, MASKS[mask], perturbed=PERTURBED)[0], SCAPO_LOSS[mask])


NO_DUAL = TokenClip(dual=None)
GSPO, SAPO = Method(objective=SequenceClip(kind="sequence_clip")), Method(objective=SoftGate(kind="soft_gate"))
DR_GRPO = Method(
    advantage=Advantage(scale="none"), objective=TokenClip(low=0.2, high=0.2, dual=None), reduction="constant"
)
FIPO = Method(credit=(FutureCredit(kind="future_kl"),))
ENTROPY_20 = Method(credit=(EntropyCredit(kind="entropy"),), objective=NO_DUAL)


def by_sequence(method: Method) -> Method:
    return method.model_copy(update={"reduction": "sequence_mean"})


@pytest.mark.parametrize(
    ("method", "mask", "want"),
    [
        (by_sequence(Method()), "full", 0.9989107000453958),
        (by_sequence(Method()), "pad", 1.5114125914740122),
        (GSPO, "full", 0.4073562224086253),
        (GSPO, "pad", 0.4467824823727403),
        (by_sequence(GSPO), "full", 0.4073562224086254),
        (by_sequence(GSPO), "pad", 0.7353252588410346),
        (SAPO, "full", 0.10285997758447163),
        (SAPO, "pad", -0.153190724890817),
        (by_sequence(SAPO), "full", 0.10285997758447163),
        (by_sequence(SAPO), "pad", 0.1960803243368282),
        (FIPO, "full", 0.9490439077904401),
        (FIPO, "pad", 0.9825581402741086),
        (ENTROPY_20, "full", 3.8546082544901314),
        (ENTROPY_20, "pad", 8.614311908900854),
    ],
)
def test_losses(method: Method, mask: str, want: float) -> None:
    close(loss_of(method, MASKS[mask])[0], want)


@pytest.mark.parametrize(("mask", "want"), [("full", 0.6711590190784176), ("pad", 0.6054545755549161)])
def test_dr_grpo_with_limit_four(mask: str, want: float) -> None:
    close(loss_of(DR_GRPO, MASKS[mask])[0], want)


GRADIENTS = {
    ("gspo", "full"): [[0.0] * 3, [0.25368351141974443] * 3],
    ("gspo", "pad"): [[0.0] * 3, [0.43560782822527067] * 2 + [0.0]],
    ("gspo by sequence", "full"): [[0.0] * 3, [0.2536835113642333] * 3],
    ("gspo by sequence", "pad"): [[0.0] * 3, [0.5445097852607717] * 2 + [0.0]],
    ("sapo", "full"): [[-0.12988596168744815, -0.16559544994271258, -0.11667543893534305],
                       [0.09055568161997485, 4.5688008931676904e-05, 0.12380358900554445]],
    ("sapo", "pad"): [[-0.15586315402216222, -0.19871453993403065, -0.14001052672796277],
                      [0.10866681794674538, 5.482561626912741e-05, 0.0]],
    ("fipo", "full"): [[-0.1562945490807266, 0.0, -0.11667832683359691], [0.0, 0.0, 0.13024545764128703]],
    ("fipo", "pad"): [[-0.18755345887466746, 0.0, -0.14001399217811183], [0.0] * 3],
}  # fmt: skip
NAMED = {"gspo": GSPO, "gspo by sequence": by_sequence(GSPO), "sapo": SAPO, "fipo": FIPO}


@pytest.mark.parametrize(("name", "mask"), GRADIENTS)
def test_gradients(name: str, mask: str) -> None:
    """The reference gradients are central differences: good to about 1e-9."""
    got = loss_of(NAMED[name], MASKS[mask])[1]
    torch.testing.assert_close(got, torch.tensor(GRADIENTS[name, mask], dtype=torch.float64), rtol=0, atol=2e-9)


def test_gspo_near_one() -> None:
    """s of 1.0001 and 0.9997, both inside the clip: every token of a response has the same gradient."""
    new = (OLD + torch.tensor([[1e-4], [-3e-4]], dtype=torch.float64)).requires_grad_(True)
    _, tokens, _ = token_advantages(GSPO, REWARDS, signals(FULL))
    # the clip's lower bound is 1 - 3e-4 and s is 0.9997000450: above it
    losses, events = update_losses(GSPO, new, OLD, tokens, FULL)
    loss = reduce(losses, FULL, token_shares(FULL, "sequence_mean", 3))
    loss.backward()
    assert not any(e.any() for e in events.values())
    close(loss.detach(), -0.00014140701577175507)
    want = torch.tensor([[-0.1178627495601603] * 3, [0.11781561366] * 3], dtype=torch.float64)
    torch.testing.assert_close(new.grad, want, rtol=0, atol=2e-9)


FUTURE = {
    "full": [[0.4818527920280944, 0.3902142793791231, -0.01], [-0.20211983596507127, 0.04892860310438505, 0.05]],
    "pad": [[0.4818527920280944, 0.3902142793791231, -0.01], [-0.25, 0.0, 0.0]],
}
FACTOR = {
    ("paper", "full"): [[1.2, 1.2, 1.0], [1.0, 1.0, 1.0512710963760241]],
    ("paper", "pad"): [[1.2, 1.2, 1.0], [1.0, 1.0, 1.0]],
    ("7B", "full"): [[1.2, 1.2, 0.9900498337491681], [0.8169970164497681, 1.0, 1.0512710963760241]],
    ("7B", "pad"): [[1.2, 1.2, 0.9900498337491681], [0.8, 1.0, 1.0]],
}
RANGES = {"paper": {}, "7B": {"low": 0.8, "safety": 3.0}}


@pytest.mark.parametrize(("setting", "mask"), FACTOR)
def test_future_kl(setting: str, mask: str) -> None:
    settings = FutureCredit(kind="future_kl", **RANGES[setting])
    close(future_kl(NEW, OLD, MASKS[mask], settings), FUTURE[mask])
    _, tokens, _ = token_advantages(Method(), REWARDS, signals(MASKS[mask]))
    close(future_factor(NEW, OLD, tokens, MASKS[mask], settings)[0], FACTOR[setting, mask])


def test_entropy_selects_at_or_above_the_quantile() -> None:
    for mask, chosen, threshold in (
        (FULL, [[False, True, False], [False, True, False]], 0.9),
        (PAD, [[False] * 3, [False, True, False]], 1.04),
    ):
        got, stats = selected_tokens(ENTROPY_20, signals(mask))
        assert got.tolist() == chosen
        assert stats["entropy/threshold"] == pytest.approx(threshold, abs=1e-12)


def test_counterfactual_spans() -> None:
    """Spans of the first two tokens, and of one token each with a full and a quarter of the drop."""
    settings = SpanCredit(kind="spans")
    spans = [[Span(0, 2, 1.6)], [Span(0, 1, 0.8), Span(2, 3, 0.2)]]
    for row, want in enumerate([[1.0, 1.0, 0.5], [1.0, 0.5, 0.625]]):
        close(importance(spans[row], 3, settings), want)
    s = signals(FULL, spans=spans, answer_start=[3, 3])
    close(
        span_weights(s, settings),
        [[1.170731707317073, 1.170731707317073, 0.6585365853658537],
         [1.3426573426573427, 0.7552447552447552, 0.9020979020979021]],
    )  # fmt: skip
    close(loss_of(Method(credit=(settings,)), FULL, spans=spans, answer_start=[3, 3])[0], 0.7224904724852347)

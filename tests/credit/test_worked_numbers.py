"""Numbers worked out independently in float64: 2 responses x 3 tokens; 'pad' drops the second response's last token."""

from __future__ import annotations

import pytest
import torch

from tokencredit.credit import Signals, group_advantage, token_advantages, token_clip, token_mean
from tokencredit.credit.margin import weights
from tokencredit.credit.semifactual import drift, stability
from tokencredit.study.methods import Advantage, MarginCredit, Method, SemifactualCredit, TokenClip

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


def signals(mask: torch.Tensor, **more: object) -> Signals:
    return Signals(mask, GROUPS, OLD, MARGIN, torch.zeros_like(OLD), row_seeds=(1, 2), **more)  # type: ignore[arg-type]


def loss_of(method: Method, mask: torch.Tensor, **more: object) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, gradient with respect to NEW) of one optimiser step."""
    _, tokens, _ = token_advantages(method, REWARDS, signals(mask, **more))
    new = NEW.clone().requires_grad_(True)
    losses, _ = token_clip(new, OLD, tokens, method.objective)
    loss = token_mean(losses, mask, int(mask.sum()))
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

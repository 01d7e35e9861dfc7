"""What d-filtered decoding changed, and how much of that its controls reach; every number with its uncertainty.

    gain(arm) = accuracy(arm) - accuracy(plain)          share(control) = gain(control) / gain(filter)

Intervals redraw problems, then each problem's samples, 10,000 times (a little wide, since the first stage alone
brings the samples' noise along); a redrawn sample is the same one in every arm, since arms share its seed. A share is
given only where the interval of the filter's gain excludes 0: the ratio to a gain that may be none says nothing.
All arrays are right answers [P problems, S samples]; greedy, which has one sample, is repeated S times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DRAWS, LEVEL = 10_000, 0.95
PLAIN, FILTER = "plain", "filter"
CONTROLS = {
    "temperature": "A temperature of the same entropy",
    "greedy": "Greedy decoding",
    "random": "A random mask of the same mass",
}

Data = dict[str, Any]


def accuracy(correct: np.ndarray) -> Data:
    """Share right [P, S] with its Wilson interval.

    One sample per problem: the plain Wilson interval. More: samples of a problem are alike, so the interval is that
    of n / deff independent trials, deff = cluster-robust variance over that of independent samples, at least 1 (OUR
    CHOICE, the survey statistician's usual one); where all samples agree, of P trials.
    """
    problems, n = len(correct), correct.size
    right, share = int(correct.sum()), float(correct.mean())
    if not 0 < right < n or problems < 2:
        effective = float(problems)
    else:
        excess = ((correct - share).sum(1) ** 2).sum()
        robust = problems / (problems - 1) * excess / n**2
        effective = n / max(1.0, robust / (share * (1 - share) / (n - 1)))
    low, high = wilson(share, effective)
    return {
        "accuracy": share, "low": low, "high": high, "right": right, "n": n, "problems": problems,
        "effective_n": effective,
    }  # fmt: skip


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's interval for a share of n trials, n not always a whole number (evaluation.compare has it for counts)."""
    from scipy.stats import norm

    z = float(norm.ppf(0.5 + LEVEL / 2))
    centre, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))


def paired(plain: np.ndarray, filtered: np.ndarray) -> Data:
    """The 2x2 table of samples that share problem and seed, and McNemar's exact test: among the pairs that changed,
    right to wrong against wrong to right as tosses of a fair coin.

    The test takes pairs for independent; with several samples per problem they are not, so `first_p` tests the first
    sample of every problem alone.
    """
    before, after = plain.astype(bool), filtered.astype(bool)
    lost, won = before & ~after, ~before & after
    return {
        "both_right": int((before & after).sum()),
        "right_to_wrong": int(lost.sum()),
        "wrong_to_right": int(won.sum()),
        "both_wrong": int((~before & ~after).sum()),
        "n": before.size,
        "p": mcnemar(int(lost.sum()), int(won.sum())),
        "first_p": mcnemar(int(lost[:, 0].sum()), int(won[:, 0].sum())),
    }


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided p of `won` against `lost`; 1 where nothing changed.

    >>> round(mcnemar(1, 9), 5)
    0.02148
    """
    from scipy.stats import binomtest

    return float(binomtest(won, lost + won, 0.5).pvalue) if lost + won else 1.0


def redrawn(arms: Mapping[str, np.ndarray], seed: int, draws: int = DRAWS) -> dict[str, np.ndarray]:
    """Arm -> `draws` means of the arm [P, S], problems and then samples redrawn alike in all arms."""
    stack = np.stack([np.asarray(a, dtype=np.float64) for a in arms.values()], -1)  # [P, S, arms]
    problems, samples, _ = stack.shape
    rng = np.random.default_rng(seed)
    means = np.empty((draws, len(arms)))
    for i in range(draws):
        rows = rng.integers(problems, size=(problems, 1))
        means[i] = stack[rows, rng.integers(samples, size=(problems, samples))].mean((0, 1))
    return dict(zip(arms, means.T, strict=True))


def interval(values: np.ndarray) -> tuple[float, float]:
    """Percentile interval at LEVEL."""
    low, high = np.percentile(values, [50 - LEVEL * 50, 50 + LEVEL * 50])
    return float(low), float(high)


def compare(arms: Mapping[str, np.ndarray], seed: int, draws: int = DRAWS) -> Data:
    """Gains over plain sampling and what the controls among `arms` explain of the filter's.

    -> {"gains": arm -> {gain, low, high}, "controls": control -> {share, low, high, difference, difference_low,
    difference_high, verdict}}; share, low and high are None where there is no gain to explain; difference is filter
    minus control.
    """
    means = redrawn(arms, seed, draws)
    point = {name: float(values.mean()) for name, values in arms.items()}
    gains = {name: _gain(point[name] - point[PLAIN], means[name] - means[PLAIN]) for name in arms if name != PLAIN}
    controls = {}
    for name in CONTROLS:
        if name not in arms:
            continue
        low, high = interval(means[FILTER] - means[name])
        entry: Data = {"share": None, "low": None, "high": None}
        if gains[FILTER]["low"] > 0:
            gained = means[FILTER] > means[PLAIN]  # all but at most 2.5 % of the draws
            ratios = (means[name] - means[PLAIN])[gained] / (means[FILTER] - means[PLAIN])[gained]
            entry["low"], entry["high"] = interval(ratios)
            entry["share"] = (point[name] - point[PLAIN]) / (point[FILTER] - point[PLAIN])
        entry |= {"difference": point[FILTER] - point[name], "difference_low": low, "difference_high": high}
        controls[name] = entry | {"verdict": verdict(CONTROLS[name], gains[FILTER], entry)}
    return {"gains": gains, "controls": controls}


def _gain(gain: float, draws: np.ndarray) -> Data:
    low, high = interval(draws)
    return {"gain": gain, "low": low, "high": high}


def verdict(control: str, gain: Mapping[str, float], entry: Mapping[str, float | None]) -> str:
    """One sentence: how much of the filter's gain a control reaches, and no more than the interval allows."""
    share, low, high = entry["share"], entry["low"], entry["high"]
    if share is None or low is None or high is None:
        if gain["high"] < 0:
            return "No gain to explain: the filter is worse than plain sampling."
        return "No gain to explain: the filter's gain cannot be told from zero."
    if low > 1:
        part = "more than the filter gains"
    elif low > 0 and high >= 1:
        part = "all of it, within what these samples can tell"
    elif low > 0:
        part = "most of it" if low > 0.5 else "a part of it"
    else:
        part = "anything from none to all of it: too few samples to say" if high >= 1 else "none that could be shown"
    reach, least, most = (f"{value * 100:.0f}".replace("-", "\N{MINUS SIGN}") for value in (share, low, high))
    return f"{control} reaches {reach} % of the filter's gain ({least} to {most} %): {part}."


def matched_temperature(temperatures: Sequence[float], entropies: Sequence[float], target: float) -> Data:
    """The temperature at which the mean entropy is `target`, from its values at rising temperatures.

    log entropy is interpolated over log temperature (monotone cubic) and bisected. Where the target lies outside of
    what was measured, the nearest end is taken and `inside` is False. -> {temperature, entropy, target, inside}.
    """
    from scipy.interpolate import PchipInterpolator

    x = np.log(np.asarray(temperatures, dtype=np.float64))
    y = np.log(np.maximum.accumulate(np.maximum(entropies, 1e-300)))
    goal = math.log(max(target, 1e-300))
    if not y[0] < goal < y[-1]:
        end = 0 if goal <= y[0] else -1
        inside = bool(goal == y[end])
        return {"temperature": temperatures[end], "entropy": entropies[end], "target": target, "inside": inside}
    curve, low, high = PchipInterpolator(x, y), float(x[0]), float(x[-1])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) < goal else (low, middle)
    return {"temperature": math.exp(low), "entropy": math.exp(float(curve(low))), "target": target, "inside": True}

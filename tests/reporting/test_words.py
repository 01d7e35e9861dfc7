"""The answer's sentences, numbers as text, and labels that keep apart."""

import itertools

import pytest

from tokencredit.analysis.plan import plan
from tokencredit.evaluation.compare import over_seeds
from tokencredit.reporting.answer import answer
from tokencredit.reporting.inline import NEUTRALS
from tokencredit.reporting.results import Results
from tokencredit.reporting.style import METHOD_STYLES, PAPER, SPARE, apart, look
from tokencredit.reporting.tables import latex
from tokencredit.reporting.text import duration, fixed, listed, signed

BASELINE = {0: 0.50, 1: 0.52, 2: 0.48}


def results(lengths=(100.0, 100.0), **methods):
    """Results of one benchmark: method -> {seed: accuracy}; lengths: baseline's and the others'."""
    spec = {
        "study": "s", "steps": [10], "labels": {m: m.upper() for m in methods},
        "grid": {"models": ["m"], "methods": list(methods), "seeds": [0, 1, 2], "benchmarks": ["b"]},
        "benchmarks": {"b": {"samples": 4, "label": "bench"}},
    }  # fmt: skip
    scores, pairs = {}, {}
    for method, values in methods.items():
        scores["m", method, 10, "b", "avg", 4] = values
        scores["m", method, 10, "b", "length_mean", 4] = dict.fromkeys(values, lengths[method != "grpo"])
        r = over_seeds(values, methods.get("grpo", {})) if method != "grpo" else None
        if r:
            cells = {c: "" if getattr(r, c) is None else str(getattr(r, c)) for c in ("se", "t", "p", "low", "high")}
            pairs["m", method, 10, "b", "avg", 4] = {
                **cells, "difference": str(r.difference), "sign_flip_p": str(r.sign_flip_p), "p_holm": cells["p"],
                "seeds": str(r.n), "seed_values": " ".join(f"{s}:{v}" for s, v in r.values.items()),
            }  # fmt: skip
    return Results(plan(spec), scores, pairs, {}, [])


def shifted(by, noise=(0.001, -0.001, 0.0)):
    return {s: v + by + noise[s] for s, v in BASELINE.items()}


def first(**methods):
    return answer(results(grpo=BASELINE, **methods), "m").sentences[0]


def test_a_clear_gain_is_claimed_with_its_interval():
    said = first(mcpo=shifted(0.05))
    assert said.startswith("MCPO beats GRPO by 5.0 points (95 % interval +4.8 to +5.2)")


def test_a_gain_that_could_be_none_is_not_claimed():
    said = first(mcpo=shifted(0.02, (0.05, -0.05, 0.0)))
    assert "MCPO does not beat GRPO" in said
    assert "beats" not in said


def test_a_loss_is_told_plainly():
    assert first(scapo=shifted(-0.05)).startswith("SCAPO falls 5.0 points behind GRPO")


def test_one_seed_and_no_shared_seed_claim_nothing():
    assert "not shown to beat GRPO" in first(mcpo={0: 0.9})
    assert "No method can be compared with GRPO yet" in first(mcpo={7: 0.9})
    assert "SCAPO cannot be compared with GRPO yet" in first(mcpo=BASELINE, scapo={7: 0.9})


def test_many_methods_are_grouped():
    noisy = shifted(0.01, (0.05, -0.05, 0.0))
    said = first(mcpo=shifted(0.05), scapo=shifted(-0.04), gspo=noisy, sapo=noisy, fipo={9: 0.1})
    assert said == (
        "MCPO (+5.0) beats GRPO; SCAPO (−4.0) is below it; GSPO (+1.0) and SAPO (+1.0) cannot be told from it; "
        "FIPO cannot be judged yet."
    )


def test_no_baseline_or_no_challenger_is_said():
    assert "nothing to compare" in answer(results(mcpo=BASELINE), "m").sentences[0]
    assert "compares nothing" in answer(results(grpo=BASELINE), "m").sentences[0]


def test_second_sentence_names_seeds_floor_and_length():
    made = answer(results(lengths=(100.0, 250.0), grpo=BASELINE, mcpo=shifted(0.05)), "m")
    assert "over 3 seeds" in made.sentences[1]
    assert "p = 0.25" in made.sentences[1]
    assert "2.5 times as long as GRPO's" in made.sentences[1]
    quiet = answer(results(grpo=BASELINE, mcpo=shifted(0.05)), "m")
    assert "times as long" not in quiet.sentences[1]
    short = answer(results(grpo=BASELINE, mcpo={0: 0.6, 1: 0.6}), "m")
    assert "2 seeds of 3 planned" in short.sentences[1]


def test_evidence_that_holm_takes_back_is_named():
    made = results(grpo=BASELINE, mcpo=shifted(0.05))
    key = ("m", "mcpo", 10, "b", "avg", 4)
    pairs = {key: {**made.pairs[key], "p_holm": "0.2"}}
    said = answer(Results(made.plan, made.scores, pairs, {}, []), "m").sentences[1]
    assert "Holm" in said
    assert "no longer stands" in said


def test_numbers_as_text():
    assert (fixed(0.1234), fixed(None), fixed(float("nan")), fixed(-0.00001)) == ("12.3", "–", "–", "0.0")
    assert (signed(0.05), signed(-0.05), signed(0.0), signed(None)) == ("+5.0", "−5.0", "0.0", "–")
    assert (duration(3.14), duration(61), duration(7300), duration(None)) == ("3.1 s", "1 min 1 s", "2 h 1 min", "–")
    assert (listed(["a"]), listed(["a", "b", "c"]), listed([])) == ("a", "a, b and c", "")
    assert latex("50% of a_b & c\\d") == r"50\% of a\_b \& c\textbackslash{}d"


@pytest.mark.parametrize("places", [[], [1.0], [0.0, 0.0, 0.0], [0.0, 0.1, 5.0, 5.05, 5.1], [-3.0, 0.0, 4.0]])
def test_labels_keep_apart_in_order_and_near(places):
    moved = apart(places, 1.0)
    assert len(moved) == len(places)
    assert all(b - a >= 1.0 - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places))  # least squares moves no group as a whole
    if all(b - a >= 1.0 for a, b in itertools.pairwise(places)):
        assert moved == places


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_is_legible_in_both_themes_and_distinct():
    looks = [*METHOD_STYLES.values(), *SPARE]
    for light, dark, _ in looks:
        assert contrast(light, "#ffffff") >= 3.0, light
        assert contrast(dark, NEUTRALS[PAPER]) >= 4.5, dark
    for i in range(3):
        assert len({entry[i] for entry in looks}) == len(looks)


def test_a_method_keeps_its_look_in_every_study():
    assert look("mcpo", ["grpo", "mcpo"]) == look("mcpo", ["x", "mcpo", "y"])
    assert look("x", ["x", "y"]) != look("y", ["x", "y"])

"""The studies of both papers against the papers' numbers, and each twin against the study it stands for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tokencredit.cli import main
from tokencredit.study import load_study
from tokencredit.study.config import Study
from tokencredit.study.files import overlay, read_yaml
from tokencredit.study.registry import entries

ROOT = Path(__file__).resolve().parents[2]
SIX = ("aime_2024", "aime_2025", "aime_2026", "amc_2023", "hmmt_feb_2025", "brumo_2025")
CONTESTS = ("aime_2024_2026", "amc_2023_2025", "hmmt_feb_2025_2026", "brumo_2025", "smt_2025")
MATHEMATICS = (*CONTESTS, "omni_math_rule", "minerva", "olympiadbench")
OOD = ("noop_aime", "thinkbench_aime", "gpqa_diamond")
SCAPO_METHODS = ("grpo", "gspo", "sapo", "cf_grpo", "fipo", "scapo")
KINDS = ("paraphrase", "typo_noise", "scenario_wrap", "irrelevant_context")
TWINS = {
    "mcpo": "mcpo_twin",
    "mcpo_qwen3_4b": "mcpo_twin",
    "scapo_qwen3_4b": "scapo_twin",
    "scapo_qwen3_1_7b": "scapo_twin",
    "scapo_ablations_1_7b": "scapo_ablations_twin",
    "cross": "cross_twin",
}


def study(name: str) -> Study:
    return load_study(overlay(read_yaml(ROOT / "config.yaml"), read_yaml(ROOT / f"workflow/studies/{name}.yaml")), name)


def settings(part: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(part, name) for name in names)


# ---- arXiv 2609.40360 (SCAPO) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "rollouts", "steps", "phase"),
    [
        ("scapo_qwen3_4b", "Qwen/Qwen3-4B-Base", 300, 600, 120),
        ("scapo_qwen3_1_7b", "Qwen/Qwen3-1.7B-Base", 500, 1000, 200),
        ("scapo_ablations_1_7b", "Qwen/Qwen3-1.7B-Base", 500, 1000, 200),
    ],
)
def test_scapo_trains_as_its_section_on_training_says(
    name: str, model: str, rollouts: int, steps: int, phase: int
) -> None:
    s = study(name)
    (only,) = (s.models[m] for m in s.grid.models)
    assert only.source.kind == "hub"
    assert (only.source.id, only.adapter.kind, only.dtype) == (model, "full", "bfloat16")
    t = s.training
    assert settings(t, "rollouts", "steps", "updates", "prompts", "group") == (rollouts, steps, 2, 128, 8)
    assert settings(t, "temperature", "top_p", "max_prompt_tokens", "max_tokens") == (1.0, 1.0, 1024, 16384)
    o = t.optimizer
    assert settings(o, "lr", "beta1", "beta2", "weight_decay") == (1e-6, 0.9, 0.999, 0.01)
    assert settings(o, "max_grad_norm", "warmup_steps") == (1.0, 0)
    assert s.problems.kind == "registry" and s.problems.name == "dapo_math_17k" and t.subset is None
    scapo = s.methods["scapo"].of("semifactual")
    assert settings(scapo, "strength", "steps", "kinds", "signs") == (0.01, phase, KINDS, "negative")
    template = only.prompt.template
    assert template.startswith("{problem}\n\n") and "step by step" in template and "\\boxed{}" in template


@pytest.mark.parametrize("name", ["scapo_qwen3_4b", "scapo_qwen3_1_7b"])
def test_scapo_compares_its_six_methods_with_its_settings(name: str) -> None:
    s = study(name)
    assert s.grid.methods == SCAPO_METHODS
    for method in ("grpo", "cf_grpo", "fipo", "scapo"):
        assert settings(s.methods[method].objective, "kind", "low", "high", "dual") == ("token_clip", 0.20, 0.28, 10.0)
    assert settings(s.methods["gspo"].objective, "kind", "low", "high") == ("sequence_clip", 3e-4, 4e-4)
    assert settings(s.methods["sapo"].objective, "kind", "positive", "negative") == ("soft_gate", 1.0, 1.05)
    spans = s.methods["cf_grpo"].of("spans")
    assert settings(spans, "spans", "shortest", "longest", "low", "high") == (10, 5, 50, 0.5, 4.0)
    fipo = s.methods["fipo"].of("future_kl")
    assert settings(fipo, "half_life", "low", "high", "safety") == (32.0, 1.0, 1.2, 10.0)
    assert {s.methods[m].reduction for m in SCAPO_METHODS} == {"token_mean"}


@pytest.mark.parametrize("name", ["scapo_qwen3_4b", "scapo_qwen3_1_7b"])
def test_scapo_is_evaluated_as_its_section_on_evaluation_says(name: str) -> None:
    s = study(name)
    assert settings(s.evaluation, "temperature", "top_p", "max_tokens") == (0.7, 0.9, 16384)
    drawn = {n: s.benchmarks[n].samples * orders(s, n) for n in s.grid.benchmarks}
    assert drawn == {
        **dict.fromkeys(CONTESTS, 16),
        **dict.fromkeys(("omni_math_rule", "minerva", "olympiadbench"), 1),
        "noop_aime": 16,
        "thinkbench_aime": 4,
        "gpqa_diamond": 24,
        "aime_pass": 128,
        "amc_pass": 128,
    }
    asked = {n: entries()[s.benchmarks[n].source.name].rows for n in s.grid.benchmarks}  # type: ignore[union-attr]
    assert asked == {
        "aime_2024_2026": 90, "amc_2023_2025": 127, "hmmt_feb_2025_2026": 63, "brumo_2025": 30, "smt_2025": 53,
        "omni_math_rule": 2821, "minerva": 272, "olympiadbench": 674, "noop_aime": 90, "thinkbench_aime": 360,
        "gpqa_diamond": 198, "aime_pass": 90, "amc_pass": 127,
    }  # fmt: skip
    assert s.averages["math"].of == MATHEMATICS
    assert s.averages["ood"].of == OOD
    curve = [n for n in s.grid.benchmarks if s.benchmarks[n].checkpoints == "all"]
    assert len(curve) == 1  # the base at step 0 is always evaluated
    assert list(s.training.evaluated_steps) == list(range(40, s.training.steps + 1, 40))


def orders(s: Study, name: str) -> int:
    source = s.benchmarks[name].source
    assert source.kind == "registry"
    return entries()[source.name].orders


@pytest.mark.parametrize("name", ["scapo_qwen3_4b", "scapo_qwen3_1_7b"])
def test_scapo_looks_at_the_base_model_as_its_section_on_analyses_says(name: str) -> None:
    s = study(name)
    panel, filtered = s.analyses["panel"], s.analyses["filtered"]
    assert s.grid.analyses == ("panel", "filtered")
    assert settings(panel, "policies", "problems", "count", "max_tokens") == (("base",), "train", 1000, 8192)
    assert settings(filtered, "policies", "problems", "count", "samples") == (("base",), "train", 1000, 1)
    assert settings(filtered, "cap", "max_tokens") == (0.8, 8192)


def test_ablations_are_the_rows_of_the_papers_table() -> None:
    s = study("scapo_ablations_1_7b")
    seen = {
        m: settings(c, "signs", "control", "kinds") for m in s.grid.methods if (c := s.methods[m].of("semifactual"))
    }
    assert seen == {
        "scapo": ("negative", "none", KINDS),
        "scapo_shuffled": ("negative", "shuffled", KINDS),
        "scapo_counterfactual": ("negative", "none", ("counterfactual",)),
        "scapo_all": ("all", "none", KINDS),
        "scapo_positive": ("positive", "none", KINDS),
    }
    assert set(s.grid.methods) - set(seen) == {"grpo"}
    assert s.grid.benchmarks == CONTESTS == s.averages["contests"].of


# ---- arXiv 2611.14015 (MCPO; its abstract) ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "seeds"),
    [("mcpo", "openbmb/MiniCPM5-2B-Base", 5), ("mcpo_qwen3_4b", "Qwen/Qwen3-4B-Base", 3)],
)
def test_mcpo_holds_what_its_abstract_says(name: str, model: str, seeds: int) -> None:
    s = study(name)
    (only,) = (s.models[m] for m in s.grid.models)
    assert only.source.kind == "hub"
    assert (only.source.id, only.adapter.kind) == (model, "lora")
    assert (s.training.steps, s.training.subset) == (200, 2048)
    assert s.grid.methods == ("grpo", "mcpo")
    assert len(s.grid.seeds) == seeds
    assert len(s.grid.benchmarks) == 6
    assert {s.benchmarks[n].samples for n in s.grid.benchmarks} == {32}


@pytest.mark.parametrize("name", ["mcpo", "mcpo_qwen3_4b", "cross"])
def test_mcpo_is_reconstructed_with_the_values_that_are_said_to_be_ours(name: str) -> None:
    s = study(name)
    for model in s.grid.models:
        adapter = s.models[model].adapter
        assert settings(adapter, "rank", "alpha", "dropout", "targets") == (32, 64, 0.0, "all-linear")
    assert settings(s.training.optimizer, "lr", "warmup_steps") == (1e-5, 10)
    margin = s.methods["mcpo"].of("margin")
    assert settings(margin, "low", "high", "strength", "form") == (0.2, 0.8, 1.0, "ratio")
    assert s.grid.benchmarks == SIX


def test_the_cross_has_both_credits_alone_and_together() -> None:
    s = study("cross")
    kinds = {m: [c.kind for c in s.methods[m].credit] for m in s.grid.methods}
    assert kinds == {
        "grpo": [],
        "mcpo": ["margin"],
        "scapo": ["semifactual"],
        "mcpo_scapo": ["margin", "semifactual"],
    }
    assert [s.models[m].source.id for m in s.grid.models] == [  # type: ignore[union-attr]
        "openbmb/MiniCPM5-2B-Base",
        "Qwen/Qwen3-4B-Base",
    ]


# ---- all of them --------------------------------------------------------------------------------------


def shape(s: Study) -> dict[str, Any]:
    """What a twin shares with its study: parts and their settings, with a credit's phase as a share of the steps."""

    def credit(values: dict[str, Any]) -> dict[str, Any]:
        return values | {"steps": values["steps"] / s.training.steps} if "steps" in values else values

    methods = {m: s.methods[m].model_dump() for m in s.grid.methods}
    return {
        "methods": {m: v | {"credit": [credit(c) for c in v["credit"]]} for m, v in methods.items()},
        "models": [settings(s.models[m], "adapter", "dtype", "gradient_checkpointing") for m in s.grid.models],
        "roles": {settings(s.benchmarks[n], "samples", "checkpoints") for n in s.grid.benchmarks},
        "averages": list(s.averages),
        "analyses": {n: settings(s.analyses[n], "kind", "policies") for n in s.grid.analyses},
        "curve": len(s.training.checkpoints) > 0,
        "training": settings(s.training, "updates", "group", "temperature", "truncated"),
        "epochs": s.training.subset is not None,
        "evaluation": settings(s.evaluation, "temperature", "top_p"),
        "counterfactual": s.semifactuals.counterfactual,
    }


@pytest.mark.parametrize(("name", "twin"), TWINS.items())
def test_twin_has_the_structure_of_its_study(name: str, twin: str) -> None:
    whole, small = study(name), study(twin)
    assert shape(small) == shape(whole)
    assert small.models[small.grid.models[0]].source.kind == "scratch"
    assert small.training.steps * small.training.prompts < 1000


@pytest.mark.parametrize("name", TWINS)
def test_revisions_are_pinned(name: str) -> None:
    s = study(name)
    for model in s.grid.models:
        source = s.models[model].source
        assert source.kind == "hub"
        assert re.fullmatch("[0-9a-f]{40}", source.revision)


@pytest.mark.parametrize("name", [n for n in TWINS if "scapo" not in n])
def test_check_passes_where_the_hub_has_everything(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENCREDIT_SHARED", str(tmp_path))
    assert main(["check", str(ROOT / f"workflow/studies/{name}.yaml"), "--base", str(ROOT / "config.yaml")]) == 0
    assert "runs of 200 steps" in capsys.readouterr().out


@pytest.mark.parametrize("name", [n for n in TWINS if "scapo" in n])
def test_check_names_the_sets_that_no_public_place_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENCREDIT_SHARED", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    file, base = str(ROOT / f"workflow/studies/{name}.yaml"), str(ROOT / "config.yaml")
    assert main(["check", file, "--base", base]) == 2
    lost = set(re.findall(r": (\w+) is not here", capsys.readouterr().err))
    assert lost == {"amc_2025"} | ({"gpqa_diamond"} if "ablations" not in name else set())
    (tmp_path / "data").mkdir()
    for file_name in ("amc_2025.jsonl", "gpqa_diamond.csv"):
        (tmp_path / "data" / file_name).touch()
    assert main(["check", file, "--base", base]) == 0

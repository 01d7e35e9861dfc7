"""Work counted by hand, the verdict and its remedies, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokencredit.cli import main
from tokencredit.plan.gpus import GIB, gpu
from tokencredit.plan.memory import StepMemory
from tokencredit.plan.page import Rates, plan, text, values, verdict
from tokencredit.plan.shapes import Shape, shape_of
from tokencredit.plan.work import Flops, Work, problems, work
from tokencredit.study import cells, evaluations, load_study
from tokencredit.study.config import Study
from tokencredit.study.errors import UserError
from tokencredit.study.files import overlay, read_yaml

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "workflow/studies").glob("*.yaml"))
BASE = str(ROOT / "config.yaml")
TINY = {
    "model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 8, "vocab_size": 10,
}  # fmt: skip
WIDE = TINY | {
    "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 32000, "tie_word_embeddings": True,
}  # fmt: skip


def read(*paths: Path | str, **change: Any) -> Study:
    settings = read_yaml(BASE)
    for path in paths:
        settings = overlay(settings, read_yaml(path))
    return load_study(overlay(settings, change))


def counted(study: Study, length: int | None = None) -> list[Work]:
    """Work with the trained parameters of no model in particular."""
    step = StepMemory(1, 1, 1, 1, 1, 1, 1, 1000, 1000, 160)
    shapes = {m: Shape(TINY, "") for m in study.grid.models}
    return list(work(study, shapes, dict.fromkeys(study.grid.models, step), length))


def test_flops_of_a_token_by_hand() -> None:
    # Attention 4 x 4 x 4 and feed-forward 3 x 4 x 8 make 160 weights; the head has 10 x 4. Two FLOPs each. One query
    # meets half a key in the mean: 4 x 4 x 1/2.
    flops = Flops(Shape(TINY, ""), 4 * 4 * 4 + 3 * 4 * 8)
    assert flops.sequence(0, 1) == 320 + 80 + 8
    # the prompt's tokens do not meet the head; 3 tokens meet 3^2 / 2 pairs
    assert flops.sequence(2, 1) == 3 * 320 + 80 + 16 * 4.5


@pytest.mark.parametrize(("prompt", "response"), [(0, 1), (7, 13), (1024, 16384)])
def test_decoding_a_response_costs_what_scoring_it_costs(prompt: int, response: int) -> None:
    flops = Flops(Shape(TINY, ""), 160)
    whole = flops.sequence(prompt, 0) + flops.decode(prompt, response)
    assert flops.sequence(prompt, response) == pytest.approx(whole)


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_job_of_every_study_is_in_the_plan(path: Path) -> None:
    study = read(path)
    jobs: dict[str, int] = {}
    for w in counted(study):
        jobs[w.rule] = jobs.get(w.rule, 0) + w.jobs
    assert jobs["train"] == len(cells(study))
    assert jobs["evaluate"] == sum(1 for _ in evaluations(study))
    assert not [w.unknown for w in counted(study) if w.unknown and path.stem != "real_smoke"]


def test_tokens_of_the_papers_run() -> None:
    study = read(ROOT / "workflow/studies/scapo_qwen3_4b.yaml")
    found = {(w.rule, w.what): w for w in counted(study)}
    grpo, scapo = found["train", "grpo"], found["train", "scapo"]
    assert grpo.generated == 300 * 128 * 8 * 16384
    assert found["evaluate", "gpqa_diamond"].generated == 7 * 198 * 24 * 16384
    assert found["evaluate", "aime_pass"].generated == 7 * 90 * 128 * 16384
    # four perturbed prompts of each response, in 120 of 600 steps: 0.8 forward passes more than GRPO's 1 + 3 + 1
    prefill = 300 * 128 * Flops(Shape(TINY, ""), 160).sequence(1024, 0)
    assert (scapo.passes - prefill) / (grpo.passes - prefill) == pytest.approx(5.8 / 5)
    shorter = {(w.rule, w.what): w for w in counted(study, 1000)}
    assert shorter["train", "grpo"].generated == 300 * 128 * 8 * 1000


def test_full_training_is_six_flops_a_parameter_and_token() -> None:
    """Without checkpointing or attention: forward and backward of the layers."""
    study = read(grid={"methods": ["grpo"], "seeds": [0], "analyses": []})
    flops = Flops(Shape(TINY | {"num_hidden_layers": 0, "vocab_size": 0}, ""), 160)
    t = study.training
    tokens = t.rollouts * t.prompts * t.group * (t.max_prompt_tokens + t.max_tokens)
    step = StepMemory(1, 1, 1, 1, 1, 1, 1, 160, 160, 160)
    one = next(w for w in work(study, {"scratch": flops.shape}, {"scratch": step}) if w.rule == "train")
    prefill = t.rollouts * t.prompts * flops.sequence(t.max_prompt_tokens, 0)
    assert one.passes - prefill == (6 + 2) * 160 * tokens  # and the score pass


def test_hours_follow_from_flops_peak_and_utilisation() -> None:
    done = Work("train", "m", "x", passes=989e12 * 3600, decoding=989e12 * 1800)
    assert Rates(0.5, 0.25).hours(done, gpu("h200")) == pytest.approx(2 + 2)
    assert Rates(0.5, 0.25).hours(done, gpu("24GB")) is None


def test_gpus() -> None:
    assert gpu("24GB").memory == gpu("24 gib").memory == 24 * GIB
    assert gpu("A100-40").usable < 40 * GIB
    for name in ("H300", "GB", "0GB", "-3GB"):
        with pytest.raises(UserError, match=r"not known; one of H200, .*24GB"):
            gpu(name)


def wide(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """A study of one model of 68 million parameters on micro-batches of 8 x 4,096 tokens."""
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    model = {"source": {"kind": "folder", "path": str(tmp_path)}, "dtype": "bfloat16"} | settings
    limits = {"max_prompt_tokens": 1024, "max_tokens": 3072, "microbatch_tokens": 8 * 4096}
    return {
        "models": {"wide": model},
        "training": limits,
        "evaluation": {"max_tokens": 3072},
        "grid": {"models": ["wide"], "methods": ["grpo"], "seeds": [0], "analyses": []},
    }


@pytest.mark.slow
def test_what_is_said_to_make_it_fit_makes_it_fit(tmp_path: Path) -> None:
    device, rates = gpu("8GB"), Rates(0.35, 0.1)
    settings = wide(tmp_path)
    made = plan(read(**settings), device, rates)
    said = made.search("wide").found()
    assert made.faults["wide"]
    assert "models.wide.gradient_checkpointing: true" in said
    for remedy in said:
        changed = settings
        for part in remedy.removesuffix(" (another study)").split(" and "):
            key, value = part.split(": ")
            nested: Any = yaml.safe_load(value)
            for name in reversed(key.split(".")):
                nested = {name: nested}
            changed = overlay(changed, nested)
        assert not plan(read(**changed), device, rates).faults, remedy


@pytest.mark.slow
def test_where_nothing_helps_that_is_said(tmp_path: Path) -> None:
    made = plan(read(**wide(tmp_path)), gpu("1.2GB"), Rates(0.35, 0.1))
    assert not made.search("wide").found()
    assert "wide: nothing that was tried makes it fit; the smallest update takes" in verdict(made)[-1]


@pytest.mark.slow
def test_share_of_the_engine_is_judged(tmp_path: Path) -> None:
    settings = wide(tmp_path, gradient_checkpointing=True, engine={"kind": "vllm", "gpu_share": 0.9})
    made = plan(read(**overlay(settings, {"training": {"microbatch_tokens": 4096}})), gpu("8GB"), Rates(0.35, 0.1))
    assert any("sampling beside the trainer's state" in fault for fault in made.faults["wide"])
    assert any("engine.gpu_share" in said for said in made.search("wide").found())


@pytest.mark.slow
def test_command_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--base", BASE]) == 0
    out = capsys.readouterr().out
    for word in ("weights", "gradients", "optimiser", "activations", "scores", "KV cache", "train", "GPU h", "disk GB"):
        assert word in out
    assert main(["plan", "--base", BASE, "--json", "--length", "20"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = found["memory"]["scratch"]["parts"]
    names = ("weights", "gradients", "optimizer", "activations", "scores")
    assert found["memory"]["scratch"]["update"] >= sum(parts[n] for n in names)
    assert {w["rule"] for w in found["work"]} >= {"train", "evaluate", "panel", "filtered", "fidelity", "completion"}


@pytest.mark.slow
def test_command_refuses_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(wide(tmp_path)))
    assert main(["plan", str(tmp_path / "s.yaml"), "--base", BASE, "--gpu", "8GB"]) == 2
    seen = capsys.readouterr()
    assert "the peak of this GPU is not known" in seen.out
    assert "wide does not fit 8GB: an update takes" in seen.err
    assert (
        "wide would fit with training.microbatch_tokens: 4096; or models.wide.gradient_checkpointing: true" in seen.err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "H300"], "--gpu H300: not known"),
        (["--mfu", "2"], "--mfu: a share above 0, at most 1 (got 2.0)"),
        (["--decode-mfu", "0"], "--decode-mfu: a share"),
        (["--length", "0"], "--length: at least 1 token"),
    ],
)
def test_command_names_what_is_wrong(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--base", BASE, *words]) == 2
    assert said in capsys.readouterr().err


def test_sets_of_unknown_size_are_named(tmp_path: Path) -> None:
    source = {"kind": "jsonl", "path": "own.jsonl"}
    study = read(benchmarks={"own": {"source": source}}, grid={"benchmarks": ["own"], "analyses": []})
    assert [w.unknown for w in counted(study) if w.unknown] == ["benchmarks.own: its number of problems (expect_rows)"]
    assert problems(study.problems) == 1600


def test_text_and_values_agree(tmp_path: Path) -> None:
    made = plan(read(grid={"seeds": [0], "analyses": []}), gpu("H200"), Rates(0.35, 0.1))
    assert shape_of(made.study.models["scratch"].source, "").known_from == "study file"
    assert not verdict(made)
    whole = sum(w["generated"] for w in values(made)["work"])
    assert f"{whole:.3g}" in list(text(made))[-1]

"""vLLM where it is not installed: what can be checked without it, and the whole suite in its own environment."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sampling.models import build
from tokencredit.sampling import Completion, make_engine
from tokencredit.sampling.handover import compare, probe
from tokencredit.sampling.vllm_start import _nothing_left_out, untied
from tokencredit.study.base import parse
from tokencredit.study.config import Model
from tokencredit.study.errors import UserError

SUITE = ["test_engines.py", "test_model_traps.py", "test_vllm_inside.py"]


@pytest.mark.slow
def test_suite_in_its_environment(root: Path) -> None:
    if not (root / ".venv-vllm" / ".product").exists():
        pytest.skip("no .venv-vllm: make it with 'make env-vllm'")
    python = root / ".venv-vllm" / "bin" / "python"
    environment = {**os.environ, "TOKENCREDIT_VLLM": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_CI_ENV": "1"}
    options = ["-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore"]
    command = [str(python), *options, *(f"tests/sampling/{name}" for name in SUITE)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 40, done.stdout[-2000:]  # the suite ran, rather than being skipped


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_environment_is_named() -> None:
    with pytest.raises(UserError, match="make env-vllm"):
        make_engine(build("qwen3-gqa"), kind="vllm")


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("vlm", "did you mean 'vllm'"),
        ({"row": 3}, "did you mean 'rows'"),
        ({"kind": "hf"}, "kind"),
        ({"alarm": 0.0}, "alarm"),
    ],
)
def test_settings_are_checked(engine: Any, said: str) -> None:
    source = {"kind": "folder", "path": "x"}
    assert parse(Model, {"source": source, "engine": {"rows": 8}}).engine.rows == 8  # type: ignore[union-attr]
    with pytest.raises(UserError, match=said):
        parse(Model, {"source": source, "engine": engine})


@pytest.mark.parametrize("name", ["qwen3-tied", "llama-gqa-bias"])
def test_probe_tells_new_weights_from_old(name: str) -> None:
    model = build(name)
    engine = make_engine(model, kind="fast")
    assert probe(engine, model).token_max < 1e-5
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.05
    gap = probe(engine, model)
    assert gap.token > 0.01
    assert gap.token <= gap.token_max
    engine.update(model)
    assert probe(engine, model).token_max < 1e-5


def test_gap_by_hand() -> None:
    drawn = [Completion((1, 2), "length", (-1.0, -2.0)), Completion((3,), "length", (-0.5,))]
    gap = compare(drawn, [torch.tensor([-1.5, -1.75]).double(), torch.tensor([-0.5]).double()])
    assert gap.metrics() == pytest.approx(
        {"handover/token": 0.25, "handover/token_max": 0.5, "handover/sequence": 0.125}
    )


def test_untied_head_is_a_copy_of_the_embedding() -> None:
    embedding = torch.arange(6.0).view(3, 2)
    found = untied({"model.embed_tokens.weight": embedding})
    assert torch.equal(found["lm_head.weight"], embedding)
    assert found["lm_head.weight"].data_ptr() != embedding.data_ptr()
    head = torch.zeros(3, 2)
    assert untied({"model.embed_tokens.weight": embedding, "lm_head.weight": head})["lm_head.weight"] is head


def test_a_warning_of_weights_left_out_is_an_error() -> None:
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.inplace")
    with pytest.raises(UserError, match="not loaded"), _nothing_left_out():
        logger.warning("Following weights were not loaded from checkpoint: %s", {"a"})
    with _nothing_left_out():
        logger.warning("Something else")
    assert logger.handlers == []

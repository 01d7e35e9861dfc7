"""Golds of every real file through the whole chain (load, prompt, engine, grade, table) by an engine that echoes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokencredit.evaluation import run as evaluation
from tokencredit.problems.stages import build_problems
from tokencredit.sampling import Completion, Params, Request
from tokencredit.study.config import Prompt, Runtime
from tokencredit.study.tables import read_json, read_table, write_json

# file: rows that cannot come out right, with the reason
DEFECTIVE = {
    "omni_math_rule_2821": "golds with a brace left open: no box can hold them",
}
FILES = (
    "aime_2024", "aime_2025", "aime_2026", "amc_2023", "brumo_2025", "cmimc_2025", "gsm8k_test", "hmmt_feb_2025",
    "hmmt_feb_2026", "hmmt_nov_2025", "math_500", "minerva_272", "olympiadbench_674", "omni_math_rule_2821",
)  # fmt: skip


class Letters:
    """A tokenizer whose ids are code points; the prompt's first id names the problem."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, ids))


class Echo:
    """Answers every prompt with its problem's gold in a box."""

    def __init__(self, golds: dict[tuple[int, ...], str]):
        self.golds = golds

    def generate(self, requests: Sequence[Request], params: Params) -> list[Completion]:
        texts = [f"So the answer is \\boxed{{{self.golds[r.prompt]}}}." for r in requests]
        return [Completion(tuple(map(ord, t)), "stop", (0.0,) * len(t)) for t in texts]

    def update(self, model: Any) -> None: ...


class Events:
    def metrics(self, values: dict[str, float], step: int | None = None) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_gold_earns_its_point(name: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"kind": "jsonl", "path": str(shared / "data" / f"{name}.jsonl"), "ungradable": "keep"}
    spec = {"stage": "problems", "name": name, "seed": 0, "source": source}
    build_problems(spec, tmp_path / "p.parquet", tmp_path / "p.json")
    rows = read_table("problems", tmp_path / "p.parquet").to_pylist()
    golds = {tuple(map(ord, row["problem"])): row["answer"] for row in rows}
    assert len(golds) == len(rows)

    identity = {"model": "m", "method": "base", "seed": 0, "step": 0}
    opened = SimpleNamespace(folder=tmp_path, base=tmp_path / "base.json", digest="x", identity=identity)
    write_json(tmp_path / "base.json", {"spec": {"prompt": {"template": "{problem}"}, "engine": "auto", "dtype": None}})
    (tmp_path / "checkpoint.json").write_text("{}")
    for target, value in {
        "open_checkpoint": lambda path: opened,
        "load_tokenizer": lambda folder: Letters(),
        "open_engine": lambda *args, **more: Echo(golds),
        "eos_ids": lambda folder: (0,),
        "base_prompt": lambda path: Prompt(template="{problem}"),
    }.items():
        monkeypatch.setattr(evaluation, target, value)
    settings = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 4096, "library_verdict": False, "shard_samples": 1000}
    evaluation.evaluate(
        {"benchmark": name, "seed": 0, "samples": 1, "tolerance": None, "evaluation": settings},
        tmp_path / "checkpoint.json", tmp_path / "p.parquet", tmp_path / "s.parquet", tmp_path / "s.json",
        tmp_path / "state", Runtime(grader_workers=2), Events(),
    )  # fmt: skip
    samples = read_table("samples", tmp_path / "s.parquet").to_pylist()
    assert len(samples) == len(rows)
    wrong = [(s["problem_id"], s["status"]) for s in samples if not s["correct"]]
    if name in DEFECTIVE:
        assert {status for _, status in wrong} <= {"unclosed", "no_box"}
        assert 0 < len(wrong) <= 4
    else:
        assert wrong == []
    assert read_json(tmp_path / "s.json")["accuracy"] == 1 - len(wrong) / len(rows)

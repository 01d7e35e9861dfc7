"""Pages of the documentation that are made from the code, so that they cannot fall behind it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pyarrow as pa
import yaml

from tokencredit.problems import registry
from tokencredit.study.errors import UserError
from tokencredit.study.tables import SCHEMAS

WHERE = {
    "problems": "`problems/train.parquet`, `problems/bench/{benchmark}.parquet`: one row per problem.",
    "overlap": "`problems/overlap.parquet`: one row per pair of a training problem, or a benchmark's, and a "
    "benchmark's that are the same problem.",
    "semifactuals": "`problems/semifactuals.parquet`: one row per problem and kind of perturbation.",
    "samples": "`eval/{model}/{method}/seed{seed}/step{n}/{benchmark}.parquet`: one row per sampled response.",
    "rollouts": "`train/{model}/{method}/seed{seed}/rollouts.parquet`: one row per kept training response.",
    "tokens": "`train/{model}/{method}/seed{seed}/tokens.parquet`: one row per token of the kept training responses.",
    "metrics": "`train/{model}/{method}/seed{seed}/metrics.parquet`: one row per step and metric.",
    "timings": "`train/{model}/{method}/seed{seed}/timings.parquet`: one row per step and phase.",
    "panel_tokens": "`analyses/{name}/{model}/{method}/seed{seed}/step{n}/panel_tokens.parquet`: one row per token.",
    "filtered_samples": "`analyses/{name}/{model}/{method}/seed{seed}/step{n}/filtered_samples.parquet`: one row per "
    "response of d-filtered decoding and of its controls.",
    "fidelity_tokens": "`analyses/{name}/{model}/{method}/seed{seed}/step{n}/fidelity_tokens.parquet`: one row per "
    "measured token.",
    "fidelity_credits": "`analyses/.../fidelity_credits.parquet`: one row per measured token and method.",
    "fidelity_scores": "`analyses/.../fidelity_scores.parquet`: one row per score of a method, signal or reference.",
}
BEGIN, END = "<!-- begin: made by `make docs` -->", "<!-- end -->"
HEAD = """# Tables

Made by `make docs` from `src/tokencredit/study/tables.py`; do not edit.

Every table is Parquet with exactly these columns, in this order. Equal rows give equal bytes. Wall-clock readings
stand in `timings` and in the stages' JSON records only, so that the other tables are byte-identical between runs.
"""


def tables_page() -> str:
    """docs/tables.md: every schema as a Markdown table."""
    parts = [HEAD]
    for name, columns in SCHEMAS.items():
        rows = [f"| `{c.name}` | {_type(c.type)} | {c.unit} | {c.meaning} |" for c in columns]
        head = ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([f"## {name}", "", WHERE.get(name, ""), "", *head, *rows, ""]))
    return "\n".join(parts)


def pages(root: Path) -> dict[Path, str]:
    """Every file of the repository at `root` that is made from the code, wholly or in part, and its text."""
    return {
        root / "docs" / "tables.md": tables_page(),
        root / "docs" / "benchmarks.md": registry.page(),
        root / "README.md": _between_marks(root / "README.md", reconstructed_table()),
    }


def reconstructed_table() -> str:
    """What this project had to choose, as a Markdown table."""
    source = resources.files("tokencredit.reporting").joinpath("reconstructed.yaml").read_text(encoding="utf-8")
    lines = ["| part | the paper | here | setting |", "| --- | --- | --- | --- |"]
    for row in yaml.safe_load(source):
        key = f"`{row['key']}`" if row.get("key") else ""
        lines.append(f"| {row['part']} | {row['paper']} | {row['ours']} | {key} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def _between_marks(path: Path, text: str) -> str:
    old = path.read_text(encoding="utf-8")
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{path}: the marks `{BEGIN}` and `{END}` are not there")
    return f"{head}{BEGIN}\n\n{text}\n{END}{tail}"


def _type(kind: pa.DataType) -> str:
    return f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)

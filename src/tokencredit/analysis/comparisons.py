"""What the papers leave open, as files: where a gain comes from, and whether it is length or credit.

| file | one row per | defined in |
|---|---|---|
| strata.csv | method, benchmark, way of sorting, stratum | strata.py |
| pass_differences.csv | method, benchmark, k | pass_differences.py |
| budgets.csv | method, benchmark, budget | budgets.py |
| equal_tokens.csv | method, benchmark, baseline's k | budgets.py |
| equal_length.csv | method, benchmark | equal_length.py |
| length_models.csv | benchmark, fit, term, method | length_models.py |

All from the samples at the last step; a pair without a common seed has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokencredit.analysis import budgets, equal_length, length_models, pass_differences, strata
from tokencredit.analysis.csvfile import write_csv
from tokencredit.analysis.plan import Plan
from tokencredit.analysis.side_by_side import Found, pairs
from tokencredit.evaluation.twoway import Redraws

NAMES = ("strata", "pass_differences", "budgets", "equal_tokens", "equal_length", "length_models")


def write(expected: Plan, found: Found, origins: Mapping[str, str], out: Path) -> dict[str, Path]:
    """Write the files of NAMES into `out`. Returns name -> path. origins: problem -> its question (questions.py)."""
    both, redraws = list(pairs(expected, found, origins)), Redraws(expected.study)
    models = length_models.over_runs(expected, found) + length_models.over_problems(both)
    tables = {
        "strata": (strata.COLUMNS, strata.rows(both), 7),
        "pass_differences": (pass_differences.COLUMNS, pass_differences.rows(both, redraws), 7),
        "budgets": (budgets.BUDGETS, budgets.budget_rows(both, budgets.grid(expected, found), redraws), 7),
        "equal_tokens": (budgets.EQUAL_TOKENS, budgets.equal_token_rows(both, redraws), 7),
        "equal_length": (equal_length.COLUMNS, equal_length.rows(both, redraws), 6),
        "length_models": (length_models.COLUMNS, models, 8),
    }
    return {name: write_csv(out / f"{name}.csv", *table) for name, table in tables.items()}

"""The study: typed configuration, the grid of cells, specs, seeds, tables, provenance."""

from tokencredit.study.config import SEMIFACTUAL_KINDS, Study, load_study
from tokencredit.study.errors import GoOn, UserError
from tokencredit.study.grid import Cell, Layout, analyses, cells, check_files, evaluations, layout, specs, write_specs

__all__ = [
    "SEMIFACTUAL_KINDS",
    "Cell",
    "GoOn",
    "Layout",
    "Study",
    "UserError",
    "analyses",
    "cells",
    "check_files",
    "evaluations",
    "layout",
    "load_study",
    "specs",
    "write_specs",
]

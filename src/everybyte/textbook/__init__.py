"""The formula book: the published closed equations, one function each with its citation. They teach, and they cross-check the ledger."""

from __future__ import annotations

from everybyte.textbook import activations, compute, inference, parameters, quantized, quick, states, zero
from everybyte.textbook.formula import LETTERS, Formula, all_formulas, evaluate, find_formula

FORMULAS: tuple[Formula, ...] = all_formulas()
"""The whole book, in the order of its chapters."""

__all__ = [
    "FORMULAS",
    "LETTERS",
    "Formula",
    "activations",
    "compute",
    "evaluate",
    "find_formula",
    "inference",
    "parameters",
    "quantized",
    "quick",
    "states",
    "zero",
]

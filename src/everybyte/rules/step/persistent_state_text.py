"""Formulas of what lives from step to step: weights, gradients, optimizer states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from everybyte.basics.dtypes import DType
from everybyte.layers.recording.setup import Packed
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Text
from everybyte.rules.accounting.formula_text import Known, Letters, add_up, times, with_rounding
from everybyte.rules.optimizers.plan import OptimizerPlan
from everybyte.rules.quantization.packed import FORMATS

_WORD = re.compile(r"[A-Za-z_]\w*")
_LINEAR = "P·e"


class _Sum:
    """Terms on the way to a formula: numbers with the same bytes each together, anything else as it is."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[str, int]] = {}
        self.others: dict[str, int] = {}

    def add_numbers(self, each: str, product: str, count: int) -> None:
        """`count` tensors with so many numbers; `each` says the bytes of one, as `4` or `2·4`."""
        terms = self.numbers.setdefault(each, {})
        terms[product] = terms.get(product, 0) + count

    def add(self, formula: str, count: int) -> None:
        """`count` tensors that have this formula each."""
        self.others[formula] = self.others.get(formula, 0) + count

    def text(self, copies: int, rounding: int, symbols: dict[str, int]) -> Text:
        """`32·2·(A·h + 2·K·h)`, and what the allocator rounds up."""
        parts = [times(each, add_up(terms)) for each, terms in self.numbers.items()]
        parts += [times(count, formula) for formula, count in self.others.items()]
        return with_rounding(times(copies, " + ".join(parts) or "0"), rounding, symbols)


@lru_cache(maxsize=4096)
def weights_text(members: tuple[Parameter, ...], packed: Packed | None, copies: int, rounding: int, known: Known) -> Text:
    """`32·2·(A·h + 2·K·h)`: copies, bytes a number, numbers; packed matrices by the rule of their format."""
    letters, found = Letters(known), _Sum()
    for p in members:
        if p.packed and packed is not None:
            *joined, rows, cols = p.dims
            words = {"P": letters.product((rows, cols)), "rows": letters.dim(rows), "cols": letters.dim(cols)}
            formula = _put_words(FORMATS[packed.format].formula(packed), words)
            found.add(f"{letters.product(tuple(joined))}·({formula})" if joined else formula, p.count)
        else:
            found.add_numbers(str(p.dtype.block_bytes), letters.product(p.dims), p.count)
    return found.text(copies, rounding, letters.symbols)


@lru_cache(maxsize=4096)
def gradients_text(members: tuple[Parameter, ...], kind: DType | None, copies: int, rounding: int, known: Known) -> Text:
    """As weights, in the type of the gradients."""
    letters, found = Letters(known), _Sum()
    for p in members:
        found.add_numbers(str((kind or p.dtype).block_bytes), letters.product(p.dims), p.count)
    return found.text(copies, rounding, letters.symbols)


@lru_cache(maxsize=4096)
def states_text(members: tuple[Parameter, ...], plan: OptimizerPlan, copies: int, rounding: int, known: Known) -> Text:
    """`32·2·4·(A·h + 2·K·h)`: the optimizer's rule over each tensor."""
    letters, found = Letters(known), _Sum()
    for p in members:
        formula = plan.state_text(tuple(d.size for d in p.dims), p.name)
        width = (plan.state or plan.master or p.dtype).block_bytes
        if formula.endswith(_LINEAR) and "+" not in formula:
            found.add_numbers(f"{formula.removesuffix(_LINEAR)}{width}", letters.product(p.dims), p.count)
        elif formula != "0":
            found.add(_put_words(formula, _sizes(p, letters, width, plan.rank)), p.count)
    return found.text(copies, rounding, letters.symbols)


def _sizes(p: Parameter, letters: Letters, width: int, rank: int | None) -> dict[str, str]:
    """What the words of an optimizer's rule are for a tensor."""
    words = {"P": letters.product(p.dims), "e": str(width), "dims": f"({' + '.join(map(letters.dim, p.dims))})"}
    if len(p.dims) > 1:
        words |= {"m": letters.dim(p.dims[-2]), "n": letters.dim(p.dims[-1]), "lead": letters.product(p.dims[:-2])}
    if rank:
        words["r"] = letters.named("r", rank)
    return words


def _put_words(formula: str, words: Mapping[str, str]) -> str:
    return _WORD.sub(lambda match: words.get(match[0], match[0]), formula)

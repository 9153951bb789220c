"""The parameters of a rank's network in portions that are held alike, whole, and the gaps of the buffers in which they lie.

What is here does not depend on how many ranks share it, so that it is worked out once for all layouts of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div, round_up
from everybyte.layers.network import Network, declare
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dims, elements
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Text
from everybyte.ledger.entry import Category
from everybyte.models.count import declared, parts
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.persistent_state import Group, groups, module_of
from everybyte.rules.step.persistent_state_text import gradients_text

ALIGNED = 64
"""Elements to which the start of each parameter in a buffer is padded."""


def is_matrix(p: Parameter) -> bool:
    """Whether Muon steps a parameter itself (optimizer/emerging_optimizers.py: two dimensions, not the embedding or the head)."""
    return len(p.dims) == 2 and not any(word in p.name for word in ("embeddings", "output_layer"))


def is_expert(p: Parameter) -> bool:
    """Whether a parameter belongs to routed experts: its gradients and states lie over the ranks that hold the same experts."""
    return ".experts." in f".{p.name}"


def is_fp8(p: Parameter) -> bool:
    """Whether a parameter is multiplied in fp8: weights of linear layers but the head and the router."""
    return p.name.endswith("weight") and len(p.dims) == 2 and not any(word in p.name for word in ("embeddings", "output_layer", "router"))


Widths = Callable[[Parameter], tuple[int, ...]]
"""Bytes a number of the tensors that stand beside a parameter. Equal rules are equal values."""


class Same(Record, frozen=True):
    """The same tensors beside each parameter."""

    widths: tuple[int, ...]

    def __call__(self, p: Parameter) -> tuple[int, ...]:
        """Their bytes a number."""
        return self.widths


class Moments(Record, frozen=True):
    """Two moments, under Muon one of each matrix."""

    width: int
    muon: bool

    def __call__(self, p: Parameter) -> tuple[int, ...]:
        """Their bytes a number."""
        return (self.width,) * (1 if self.muon and is_matrix(p) else 2)


def fp8_copies(p: Parameter) -> tuple[int, ...]:
    """An fp8 copy and its transpose."""
    return (2 * is_fp8(p),)


def fp8_weights(p: Parameter) -> tuple[int, ...]:
    """One byte where a weight is multiplied in fp8, else two."""
    return (1 if is_fp8(p) else 2,)


class Held(NamedTuple):
    """Tensors beside every parameter."""

    name: str
    category: Category
    widths: Widths
    source: str
    is_shared: bool = False
    """Data-parallel ranks share them, or each is a tensor of its own; else they lie close together in a buffer."""


class Portion(NamedTuple):
    """Parameters of a group that have equally many bytes a number beside them; bytes are those of one copy of the group."""

    group: Group
    members: tuple[Parameter, ...]
    each: int
    exact: int
    """Bytes, close together."""
    alone: int
    """Bytes, each tensor in multiples of 512."""
    experts: bool


def portions(network: Network, setup: Setup, widths: Widths, *, experts_apart: bool) -> tuple[Portion, ...]:
    """The trained parameters of a network, whole."""
    return tuple(portion for group in groups(network, setup, WHOLE) for portion in _divided(group, widths, experts_apart=experts_apart))


@lru_cache(maxsize=16384)
def portions_of(layer: Any, setup: Setup, dims: Dims, widths: Widths, *, experts_apart: bool) -> tuple[Portion, ...]:
    """Those of one copy of a layer."""
    rows = declare(layer, setup, dims)
    return _of_parameters(tuple(p for p in rows.parameters if not p.tied), widths, experts_apart=experts_apart)


@lru_cache(maxsize=4096)
def _of_parameters(parameters: tuple[Parameter, ...], widths: Widths, *, experts_apart: bool) -> tuple[Portion, ...]:
    """Layers that run in other ways hold the same parameters."""
    groups = by_width(parameters, lambda p: module_of(p, ""))
    return tuple(portion for place, members in groups for portion in _divided(Group(place, 1, members, ()), widths, experts_apart=experts_apart))


@lru_cache(maxsize=4096)
def _divided(group: Group, widths: Widths, *, experts_apart: bool) -> tuple[Portion, ...]:
    found = []
    for (each, experts), members in by_width(group.trained, lambda p: (sum(widths(p)), experts_apart and is_expert(p))):
        alone = sum(p.count * round_up(width * elements(p.dims)[0], 512) for p in members for width in widths(p))
        if each:
            found.append(Portion(group, members, each, each * sum(p.numel for p in members), alone, experts))
    return tuple(found)


K = TypeVar("K")


def by_width(members: Iterable[Parameter], width: Callable[[Parameter], K]) -> list[tuple[K, tuple[Parameter, ...]]]:
    """Members by a width of theirs."""
    found: dict[K, list[Parameter]] = {}
    for p in members:
        found.setdefault(width(p), []).append(p)
    return [(each, tuple(parts)) for each, parts in found.items()]


def numel_of(group: Group, members: Sequence[Parameter]) -> int:
    """Numbers of members in all copies of their group."""
    return group.copies * sum(p.numel for p in members)


def divided_text(group: Group, members: tuple[Parameter, ...], each: int, over: int, rest: int) -> Text:
    """`32·4·(A·h + 2·K·h)`, on one of D ranks divided by D; what does not divide or is rounded up is named."""
    formula, symbols = gradients_text(members, DType("", 1, each), group.copies, 0, group.letters)
    if over > 1:
        exact = each * numel_of(group, members)
        unit = exact // over * over
        symbols = {**symbols, "D": over}
        formula = f"({formula})/D" if unit == exact else f"({formula} - rest)/D"
        symbols |= {"rest": exact - unit} if unit != exact else {}
    return Text(f"{formula} + rounding", {**symbols, "rounding": rest}) if rest else Text(formula, symbols)


@lru_cache(maxsize=16384)
def gaps(network: Network, setup: Setup, experts: bool, multiple: int, bucket: int) -> int:
    """Elements between parameters and at the ends of buckets, which are filled from the last parameter to the first."""
    if not bucket:
        found = [(part.copies, _spans(part.layer, setup.of_blocks(part.path), part.dims, experts)) for part in parts(network)]
        numel, aligned = (sum(copies * spans[place] for copies, spans in found) for place in (0, 1))
        return round_up(aligned, multiple) - numel
    pieces = _pieces(network, setup, experts)
    numel = sum(copies * count * one for copies, sizes in pieces for one, count in sizes)
    end = begun = 0
    for one, count in (size for copies, sizes in pieces for size in sizes * copies):
        left, aligned = count, round_up(one, ALIGNED)
        while left:
            start = round_up(end, ALIGNED)
            fitting = ceil_div(max(bucket + begun - start - one, 0), aligned) + 1
            end = start + (min(fitting, left) - 1) * aligned + one
            if fitting <= left:
                end = begun = round_up(end, multiple)
            left -= min(fitting, left)
    return (round_up(end, multiple) if end > begun else end) - numel


@lru_cache(maxsize=16384)
def _spans(layer: Any, setup: Setup, dims: Dims, experts: bool) -> tuple[int, int]:
    """Elements of a layer's parameters, exact and each in multiples of ALIGNED."""
    own = [p for p in declare(layer, setup, dims).parameters if not p.tied and not p.buffer and is_expert(p) == experts]
    return sum(p.numel for p in own), sum(p.count * round_up(elements(p.dims)[0], ALIGNED) for p in own)


@lru_cache(maxsize=4096)
def _pieces(network: Network, setup: Setup, experts: bool) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    """(copies, (elements, count) of each parameter) of the pieces of a network, the last first."""
    found = []
    for _, piece in groupby(reversed(declared(network, setup)), key=lambda row: row.part):
        rows = list(piece)
        sizes = tuple(
            (elements(row.parameter.dims)[0], row.parameter.count) for row in rows if not row.parameter.buffer and is_expert(row.parameter) == experts
        )
        found.append((rows[0].copies, sizes))
    return tuple(found)

"""The units of a sharded network: what is gathered together before its layers run, and freed together behind them."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.basics.units import round_up
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dims, elements
from everybyte.layers.recording.tape import Parameter
from everybyte.models.count import declared
from everybyte.rules.accounting.canonical import apart
from everybyte.rules.step.persistent_state import parameter_tensors

ROOT = "root"
"""The unit of all that is in no other: embedding, final norm, head."""


class Units(Record, frozen=True):
    """How the pieces of a network are wrapped: each block is a unit, all else is the root, but for the pieces named `apart`."""

    apart: tuple[str, ...] = ()

    def of(self, part: str) -> str:
        """The unit of a piece of the network."""
        is_block = part.rpartition(".")[2][:1].isdigit()
        return part if is_block or part in self.apart else ROOT


class UnitSize(Record, frozen=True):
    """One unit, whole."""

    numel: int
    trained: int
    """Numbers of it that get a gradient, with padding."""
    gathered: int
    """Bytes when it is gathered for its layers, with padding."""


NOTHING = UnitSize(0, 0, 0)


def gathered_bytes(parameter: Parameter, setup: Setup, packed_tensors: int, numel: int) -> int:
    """Bytes of one of the `count` tensors when its `numel` numbers are gathered: of a packed weight the first `packed_tensors` of its tensors."""
    if parameter.packed:
        return sum(parameter_tensors(parameter, setup)[:packed_tensors])
    return parameter.dtype.nbytes(numel)


def padded_numel(parameter: Parameter, rows: int) -> int:
    """Numbers of a parameter with its first dimension padded to a multiple of `rows`."""
    return padded(parameter.dims, rows)


def padded(dims: Dims, rows: int) -> int:
    """The same of a tensor of these fixed dimensions."""
    numel = elements(dims)[0]
    if not dims or dims[0].size % rows == 0:
        return numel
    first = dims[0].size
    return round_up(first, rows) * (numel // first)


@lru_cache(maxsize=16384)
def unit_sizes(network: Network, setup: Setup, units: Units, packed_tensors: int = 1, ignored: bool = False, rows: int = 1) -> dict[str, UnitSize]:
    """The units by name; one copy where there are several equal blocks. `ignored`: adapters are not sharded, and so not gathered; `rows`: first
    dimensions are padded to a multiple of it."""
    found: dict[str, UnitSize] = {}
    for (piece, copies), label in zip(apart(network), (*(run.label for run in network.runs), ""), strict=True):
        for name, size in _of_piece(piece, setup, units, packed_tensors, ignored, rows).items():
            unit = units.of(label) if label else name
            found[unit] = _added(found.get(unit, NOTHING), size, copies if unit == ROOT else 1)
    return found


def _added(before: UnitSize, more: UnitSize, times: int) -> UnitSize:
    return UnitSize(before.numel + times * more.numel, before.trained + times * more.trained, before.gathered + times * more.gathered)


@lru_cache(maxsize=16384)
def _of_piece(network: Network, setup: Setup, units: Units, packed_tensors: int, ignored: bool, rows: int) -> dict[str, UnitSize]:
    found: dict[str, UnitSize] = {}
    for row in declared(network, setup):
        p, name = row.parameter, units.of(row.part)
        if p.buffer or (p.adapter and ignored):
            continue
        padded = padded_numel(p, rows)
        one = UnitSize(elements(p.dims)[0], padded if p.trainable else 0, gathered_bytes(p, setup, packed_tensors, padded))
        found[name] = _added(found.get(name, NOTHING), one, row.copies * p.count if name == ROOT else p.count)
    return found

"""The units of a sharded network: what is gathered together before its layers run, and freed together behind them."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.basics.units import round_up
from everybyte.layers.network import Network
from everybyte.layers.setup import Setup
from everybyte.layers.size import elements
from everybyte.layers.tape import Parameter
from everybyte.models.count import declared
from everybyte.rules.static import parameter_tensors

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


def gathered_bytes(parameter: Parameter, setup: Setup, packed_tensors: int, numel: int) -> int:
    """Bytes of one of the `count` tensors when its `numel` numbers are gathered: of a packed weight the first `packed_tensors` of its tensors."""
    if parameter.packed:
        return sum(parameter_tensors(parameter, setup)[:packed_tensors])
    return parameter.dtype.nbytes(numel)


def padded_numel(parameter: Parameter, rows: int) -> int:
    """Numbers of a parameter with its first dimension padded to a multiple of `rows`."""
    numel = elements(parameter.dims)[0]
    if not parameter.dims or parameter.dims[0].size % rows == 0:
        return numel
    first = parameter.dims[0].size
    return round_up(first, rows) * (numel // first)


@lru_cache(maxsize=1024)
def unit_sizes(network: Network, setup: Setup, units: Units, packed_tensors: int = 1, ignored: bool = False, rows: int = 1) -> dict[str, UnitSize]:
    """The units by name; one copy where there are several equal blocks. `ignored`: adapters are not sharded, and so not gathered; `rows`: first
    dimensions are padded to a multiple of it."""
    found: dict[str, UnitSize] = {}
    for row in declared(network, setup):
        p, name = row.parameter, units.of(row.part)
        if p.buffer or (p.adapter and ignored):
            continue
        times = row.copies * p.count if name == ROOT else p.count
        padded = padded_numel(p, rows)
        before = found.get(name, UnitSize(0, 0, 0))
        gathered = before.gathered + times * gathered_bytes(p, setup, packed_tensors, padded)
        found[name] = UnitSize(before.numel + times * elements(p.dims)[0], before.trained + (times * padded if p.trainable else 0), gathered)
    return found

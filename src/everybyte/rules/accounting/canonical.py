"""Networks that hold the same whatever their layers are called: what is worked out for one is known of all.

Networks are compared by identity; each function here gives the same object for all networks that are alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.layers.network import Network, Run
from everybyte.models.count import parts


class Piece(Record, frozen=True):
    """A piece of a network as it calls it itself, and as another does that is like it."""

    label: str
    other: str
    copies: int


@lru_cache(maxsize=16384)
def numbered(network: Network) -> tuple[Network, tuple[Piece, ...]]:
    """The network with its blocks numbered from 0; the same object for all networks that are alike."""
    found = _first_of(_Content.of(network, _from_zero(network.runs)))
    return found, _pieces(network, found)


@lru_cache(maxsize=16384)
def unnamed(network: Network) -> Network:
    """The same with neighbouring equal blocks in one run.

    Whatever is summed over layers, or is highest among them, is the same as of the network itself, unless it depends on the number of a block.
    """
    runs: list[Run] = []
    for run in _from_zero(network.runs):
        before = runs[-1] if runs else None
        if before is not None and min(run.first, before.first) >= 0 and (before.prefix, before.layer, before.dims) == (run.prefix, run.layer, run.dims):
            runs[-1] = replace(before, count=before.count + run.count)
        else:
            runs.append(run)
    return _first_of(_Content.of(network, tuple(runs)))


def _from_zero(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    first, found = 0, []
    for run in runs:
        found.append(run if run.first in (-1, first) else replace(run, first=first))
        first += run.count if run.first >= 0 else 0
    return tuple(found)


@lru_cache(maxsize=16384)
def once(network: Network) -> tuple[Network, tuple[Piece, ...]]:
    """A network with one block of each run, the same object for all networks of such blocks."""
    runs = tuple(replace(run, prefix=run.prefix if run.first < 0 else str(place), first=min(run.first, 0), count=1) for place, run in enumerate(network.runs))
    found = _first_of(_Content.of(network, runs))
    return found, _pieces(network, found)


@lru_cache(maxsize=16384)
def apart(network: Network) -> tuple[tuple[Network, int], ...]:
    """A network of one block for each run, and one of what stands before and behind the runs; how many copies of each there are."""
    alone = {"stem": None, "tail": None, "head": None, "towers": ()}
    runs = ((replace(run, first=min(run.first, 0), count=1), run.count) for run in network.runs)
    return (*((_first_of(_Content.of(network, (run,), alone)), count) for run, count in runs), (_first_of(_Content.of(network, ())), 1))


def _pieces(network: Network, other: Network) -> tuple[Piece, ...]:
    return tuple(Piece(own.label, its.label, own.copies) for own, its in zip(parts(network), parts(other), strict=True))


class _Content(Record, frozen=True):
    """What a network holds, whatever it is called."""

    fields: tuple[Any, ...]

    @classmethod
    def of(cls, network: Network, runs: tuple[Run, ...], others: dict[str, Any] | None = None) -> _Content:
        """That of a network with other runs."""
        fields = {name: getattr(network, name) for name in network.__struct_fields__} | {"name": "", "runs": runs} | (others or {})
        return cls(tuple(fields.values()))


@lru_cache(maxsize=16384)
def _first_of(content: _Content) -> Network:
    return Network(*content.fields)

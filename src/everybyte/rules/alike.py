"""Pieces of networks that hold the same whatever their layers are called: what is worked out for one is known of all."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.layers.network import Network, Run
from everybyte.models.count import parts


@lru_cache(maxsize=16384)
def unnamed(network: Network) -> Network:
    """The network with its blocks numbered from 0 and neighbouring equal ones in one run; the same object for all networks that are alike.

    Whatever is summed over layers, or is highest among them, is the same as of the network itself, unless it depends on the number of a block.
    """
    runs: list[Run] = []
    for run in network.runs:
        before = runs[-1] if runs else None
        if run.first < 0:
            runs.append(run)
        elif before is not None and before.first >= 0 and (before.prefix, before.layer, before.dims) == (run.prefix, run.layer, run.dims):
            runs[-1] = replace(before, count=before.count + run.count)
        else:
            runs.append(replace(run, first=sum(r.count for r in runs if r.first >= 0)))
    fields = {name: getattr(network, name) for name in network.__struct_fields__} | {"name": "", "runs": tuple(runs)}
    return _one(tuple(fields.values()))


class Piece(Record, frozen=True):
    """A piece of a network as its single network calls it, and as it does itself."""

    single: str
    label: str
    copies: int


@lru_cache(maxsize=16384)
def once(network: Network) -> tuple[Network, tuple[Piece, ...]]:
    """A network with one block of each run, the same object for all networks of such blocks, and how many copies of each of its pieces there are."""
    runs = tuple(replace(run, prefix=run.prefix if run.first < 0 else str(place), first=min(run.first, 0), count=1) for place, run in enumerate(network.runs))
    fields = {name: getattr(network, name) for name in network.__struct_fields__} | {"name": "", "runs": runs}
    single = _one(tuple(fields.values()))
    return single, tuple(Piece(own.label, whole.label, whole.copies) for own, whole in zip(parts(single), parts(network), strict=True))


@lru_cache(maxsize=16384)
def _one(fields: tuple[Any, ...]) -> Network:
    return Network(*fields)

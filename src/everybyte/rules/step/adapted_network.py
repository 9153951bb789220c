"""A network as a recipe trains it: with what its adapters have once for all layers, or with one block at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.layers.common.prompts import PROMPTS, AdaptedStem
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Adapter, Setup
from everybyte.layers.recording.size import elements
from everybyte.layers.recording.tape import Tape, Value
from everybyte.models.count import declared
from everybyte.rules.step.cache import stores

SHARED = ("vera", "randlora", "vblora", "prefix", *PROMPTS)
"""Kinds with something outside the blocks."""


def adapted(network: Network, setup: Setup) -> Network:
    """The network whose stem also makes what the adapter of `setup` shares; the network itself where there is no such thing."""
    adapter = setup.adapter
    return network if adapter is None or adapter.kind not in SHARED else _adapted(network, adapter)


@lru_cache(maxsize=256)
def _adapted(network: Network, adapter: Adapter) -> Network:
    if network.stem is None or network.stem_dims:
        raise Unsupported("train.adapter.kind", f"{adapter.kind!r} needs a network that starts from token ids; {network.family} does not")
    stem = AdaptedStem(network.stem, adapter, network.hidden, cache_width(network), widest(network, adapter))
    return replace(network, stem=stem)


def cache_width(network: Network) -> int:
    """Numbers of all layers' keys and values of one token."""
    return sum(store.copies * elements(cache.dims)[0] for store in stores(network) for cache in store.caches if cache.kind == "kv")


def widest(network: Network, adapter: Adapter) -> tuple[int, int, int]:
    """Largest input, output and shorter side of the linear layers that the adapter covers."""
    sizes = [
        (p.dims[-1].size, p.dims[0].size)
        for row in declared(network)
        if len((p := row.parameter).dims) == 2 and p.name.endswith(".weight") and adapter.covers(p.name.removesuffix(".weight"))
    ]
    return (
        max((i for i, _ in sizes), default=0),
        max((o for _, o in sizes), default=0),
        max((min(pair) for pair in sizes), default=0),
    )


class Frozen(Record, frozen=True):
    """A layer whose base is not trained in this step, though the recipe trains others."""

    layer: Any

    def forward(self, t: Tape, x: Value) -> Value:
        """As the layer does."""
        setup = t.setup
        t.setup = replace(setup, trainable=())
        out: Value = self.layer.forward(t, x)
        t.setup = setup
        return out


@lru_cache(maxsize=256)
def one_block(network: Network) -> Network:
    """The network with its first block alone to be trained: backward then passes through all the others."""
    first, *others = network.runs
    runs = [replace(first, count=1)]
    if first.count > 1:
        runs.append(replace(first, first=first.first + 1, count=first.count - 1, layer=Frozen(first.layer)))
    runs += [replace(run, layer=Frozen(run.layer)) for run in others]
    stem, tail = (None if part is None else Frozen(part) for part in (network.stem, network.tail))
    return replace(network, runs=tuple(runs), stem=stem, tail=tail)

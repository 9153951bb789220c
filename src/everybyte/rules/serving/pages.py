"""What one token and one sequence cost in the cache of a serving engine, layer kind by layer kind, and what a pool of bytes holds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.recording.size import elements
from everybyte.layers.recording.tape import Cache
from everybyte.rules.serving.tensor_parallel import Cut, cut_stores
from everybyte.rules.step.cache import Format

Priced = Callable[[Cache, Format], int | None]
"""An engine's own bytes of one cache of one token (keys of an indexer with their scales); None: as the format says."""


class LayerCache(NamedTuple):
    """What `copies` equal layers remember on one rank. Bytes are those of one layer."""

    label: str
    copies: int
    token: int
    """Bytes of keys and values of one entry; 0 where the layer has none."""
    window: int
    """Tokens back that are read; 0: all of them."""
    every: int
    """Tokens that one entry stands for."""
    state: int
    """Bytes of a sequence's recurrent state; 0 where the layer has none."""
    cross: int = 0
    """Bytes of one encoder position."""

    @property
    def is_full(self) -> bool:
        """Grows with every token."""
        return self.token > 0 and not self.window


@lru_cache(maxsize=256)
def layer_caches(network: Network, cut: Cut, kind: Format, state: int = 0, priced: Priced | None = None) -> tuple[LayerCache, ...]:
    """The layers that remember something, in the order of the network. `state`: bytes of a number of recurrent states where the engine chooses, 0: as
    the layer declares them; convolutions follow the cache's own type or 16 bits."""
    found: list[LayerCache] = []
    for store in cut_stores(network, cut):
        by_kind: dict[tuple[int, int], int] = {}
        states = cross = 0
        for cache in store.caches:
            width = elements(cache.dims)[0]
            if cache.kind == "state":
                states += _state_bytes(cache, width, state)
                continue
            own = priced(cache, kind) if priced else None
            size = own if own is not None else (Format(cache.dtype) if cache.dtype else kind).nbytes(width, 1, 1)
            if cache.kind == "cross":
                cross += size
            else:
                by_kind[cache.window, cache.every] = by_kind.get((cache.window, cache.every), 0) + size
        rows = list(by_kind.items()) or [((0, 1), 0)]
        for position, ((window, every), size) in enumerate(rows):
            first = position == 0
            found.append(LayerCache(store.label, store.copies, size, window, every, states if first else 0, cross if first else 0))
    return tuple(found)


def _state_bytes(cache: Cache, width: int, state: int) -> int:
    """Recurrent states are declared in fp32; a convolution's last columns are 16-bit numbers."""
    if cache.dtype is None:
        return 2 * width
    return (state or cache.dtype.block_bytes) * width


class Prices(NamedTuple):
    """Sums over the layers of one rank, in bytes."""

    full: Fraction
    """A token in the layers that see everything."""
    windowed: Fraction
    """A token in the layers with a window."""
    window: int
    """The largest window, 0 for none."""
    state: int
    """A sequence's recurrent states."""
    cross: int
    """An encoder position."""

    @property
    def token(self) -> int:
        """A token in all layers."""
        whole = self.full + self.windowed
        return ceil_div(whole.numerator, whole.denominator)


def prices(layers: tuple[LayerCache, ...]) -> Prices:
    """What a token and a sequence cost."""
    full = sum((Fraction(layer.copies * layer.token, layer.every) for layer in layers if not layer.window), Fraction())
    windowed = sum((Fraction(layer.copies * layer.token, layer.every) for layer in layers if layer.window), Fraction())
    return Prices(
        full,
        windowed,
        max((layer.window for layer in layers), default=0),
        sum(layer.copies * layer.state for layer in layers),
        sum(layer.copies * layer.cross for layer in layers),
    )


def whole_pages(tokens: int, page: int) -> int:
    """Tokens of the pages that are full."""
    return tokens // page * page

"""All that a server holds, and its rows by device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from everybyte.engines.llamacpp.cache import Cells, Stored
from everybyte.engines.llamacpp.placement import Split
from everybyte.engines.llamacpp.settings import Settings
from everybyte.engines.llamacpp.weights import Held
from everybyte.ledger.build import Line, plain

CACHE_SOURCE = "what each layer declares as its cache; llama.cpp src/llama-kv-cache.cpp, llama-memory-recurrent.cpp"
GRAPH_SOURCE = "ggml's scheduler and graph allocator replayed over the largest prompt's graph; llama.cpp ggml/src/ggml-backend.cpp, ggml-alloc.c"
WEIGHT_SOURCE = "llama.cpp src/llama-model.cpp load_tensors"


class Parts(NamedTuple):
    """Everything before it is written down by device."""

    settings: Settings
    split: Split
    cells: Cells
    caches: tuple[Stored, ...]
    weights: Held
    compute: tuple[int, ...] | None
    vocab: int

    @property
    def needed(self) -> int:
        """Bytes on the fullest GPU."""
        return max(sum(line.bytes for line in self.lines(gpu)) for gpu in range(self.split.gpus))

    def lines(self, device: int) -> tuple[Line, ...]:
        """Rows of a device; the last one is the host."""
        return tuple(self._lines(device))

    def _lines(self, device: int) -> Iterator[Line]:
        weights = self.weights.devices[device]
        if weights:
            yield Line("weights", "parameter", weights, plain("w", w=weights), WEIGHT_SOURCE)
        for cache, members in groupby(self._caches(device), key=lambda pair: pair[1]):
            yield from self._cache(cache, [index for index, _ in members])
        if device == self.split.gpus:
            size = 4 * self.vocab * self.settings.slots
            yield Line("output buffer", "workspace", size, plain("4·V·s", V=self.vocab, s=self.settings.slots), "llama.cpp llama-context.cpp output_reserve")
        if self.compute is not None and self.compute[device]:
            yield Line("compute buffer", "workspace", self.compute[device], plain("c", c=self.compute[device]), GRAPH_SOURCE)

    def _caches(self, device: int) -> Iterator[tuple[int, Stored]]:
        """Layers with the part of their caches that a device holds."""
        for index, cache in enumerate(self.caches):
            share = self.split.cache_share(index, device)
            if share == 1.0:
                yield index, cache
            elif share:
                yield index, cache._replace(key=round(cache.key * share), value=round(cache.value * share), state=round(cache.state * share))

    def _cache(self, cache: Stored, layers: list[int]) -> Iterator[Line]:
        """Caches of equal layers in a row."""
        count, slots = len(layers), self.settings.slots
        name = f"layers.{layers[0]}-{layers[-1]}" if count > 1 else f"layers.{layers[0]}"
        if cache.kv:
            text = plain("L·c·(k + v)", L=count, c=cache.cells, k=cache.key, v=cache.value)
            yield Line(f"kv_cache/{name}", "kv_cache", count * cache.kv, text, CACHE_SOURCE)
        if cache.state:
            yield Line(f"state/{name}", "state", count * slots * cache.state, plain("L·s·r", L=count, s=slots, r=cache.state), CACHE_SOURCE)

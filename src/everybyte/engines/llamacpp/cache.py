"""Sizes of llama.cpp's caches: cells of the main and of the windows' cache, recurrent states, latents by version."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from everybyte.allocator.ggml import Kind
from everybyte.catalog.releases import Release
from everybyte.engines.llamacpp.layers import attention_of, blocks_of, caches_of, knows_windows, parts_of
from everybyte.engines.llamacpp.release import is_fork
from everybyte.layers.attention.mla import MLA
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.network import Network
from everybyte.layers.recording.size import elements

STATE_BYTES = 4
"""Recurrent states are fp32 (llama-context.cpp, type_r and type_s)."""
WINDOW_STEP = 256
"""Cells of the windows' cache are rounded up to these (llama-kv-cache-iswa.cpp, GGML_PAD(..., 256))."""


class Cells(NamedTuple):
    """The shape of the caches."""

    context: int
    """Cells of the main cache, a stream."""
    window: int
    """Of the windows' cache, a stream; 0 where there is none."""
    streams: int


class Stored(NamedTuple):
    """What one layer's caches take."""

    cells: int
    key: int
    """Bytes of a row of keys."""
    value: int
    windowed: bool
    state: int
    """Bytes of one sequence's recurrent state."""

    @property
    def kv(self) -> int:
        """Bytes of keys and values."""
        return self.cells * (self.key + self.value)


def padded(count: int, step: int) -> int:
    """A count rounded up."""
    return -(-count // step) * step


def cells_of(network: Network, release: Release, *, context: int, ubatch: int, slots: int, unified: bool, whole_windows: bool) -> Cells:
    """Cells for `context` tokens: of each sequence where the cache is cut into streams, of all where it is unified.

    Source: llama.cpp llama-context.cpp (n_ctx_seq), llama-kv-cache-iswa.cpp.
    """
    streams = 1 if unified else slots
    cells = padded(context, release.whole("cell_step"))
    window = largest_window(network)
    if not (window and release.has("has_windows") and knows_windows(network)):
        return Cells(cells, 0, streams)
    if whole_windows:
        return Cells(cells, cells, streams)
    return Cells(cells, min(cells, padded(window * (slots if unified else 1) + ubatch, WINDOW_STEP)), streams)


def largest_window(network: Network) -> int:
    """The window of a network's sliding layers."""
    return max((cache.window for block in blocks_of(network) for cache in caches_of(block, network.hidden)), default=0)


class Formats(NamedTuple):
    """How keys and values are stored, and how the fork computes MLA."""

    key: Kind
    value: Kind
    latent: int = 0
    flash: bool = True


def stored(network: Network, index: int, cells: Cells, forms: Formats, release: Release) -> Stored:
    """The caches of one block, from what it declares."""
    block = blocks_of(network)[index]
    caches = caches_of(block, network.hidden)
    state = sum(state_numbers(cache.name, [d.size for d in cache.dims]) for cache in caches if cache.kind == "state") * STATE_BYTES
    kept = [cache for cache in caches if cache.kind == "kv"]
    if not kept:
        keys, values = _encoder_widths(block, release)
        return Stored(cells.context, forms.key.row_bytes(keys), forms.value.row_bytes(values), False, state)
    windowed = any(cache.window for cache in kept) and cells.window > 0
    tokens = (cells.window if windowed else cells.context) * cells.streams
    latent = next((part for part in parts_of(block) if isinstance(part, MLA)), None)
    if latent is not None:
        keys, values = _latent_widths(latent, forms, release)
    else:
        keys, values = (elements(cache.dims)[0] for cache in kept[:2])
        if not forms.flash and release.has("writes_rows"):
            values = widest_values(network)
    return Stored(tokens, forms.key.row_bytes(keys), forms.value.row_bytes(values), windowed, state)


def _encoder_widths(block: Any, release: Release) -> tuple[int, int]:
    """Numbers of the rows that an encoder's layer has in the cache, though it reads none: until llama.cpp PR 12799 (May 2025)."""
    part = getattr(block, "attention", None)
    shape = attention_of(part) if isinstance(part, MultiHead) and release.has("caches_encoders") else None
    return (shape.key * shape.kv_heads, shape.value * shape.kv_heads) if shape is not None else (0, 0)


@lru_cache(maxsize=256)
def widest_values(network: Network) -> int:
    """Numbers of the widest row of values: without flash attention every layer's are stored as wide, transposed (n_embd_v_gqa_max)."""
    shapes = [attention_of(part) for block in blocks_of(network) for part in parts_of(block) if not isinstance(part, MLA)]
    return max((shape.value * shape.kv_heads for shape in shapes if shape is not None), default=0)


def state_numbers(name: str, sizes: list[int]) -> int:
    """Numbers of one state. Of a convolution the newest column is not kept: it is part of the batch."""
    if name == "conv":
        return sizes[0] * (sizes[1] - 1)
    total = 1
    for size in sizes:
        total *= size
    return total


def _latent_widths(part: MLA, forms: Formats, release: Release) -> tuple[int, int]:
    """Numbers of a key row and a value row of MLA.

    llama.cpp: all keys and values before b5145, then the latent with and without its turned part, since the end of 2025 one of them.
    ik_llama.cpp: -mla 0 all keys and values, 1 the latent and (without flash attention) its transposed copy, 2 and 3 the latent alone.
    """
    shape = attention_of(part)
    assert shape is not None
    row = part.kv_rank + part.rope
    if is_fork(release):
        if forms.latent == 0:
            return shape.key * shape.heads, shape.value * shape.heads
        return row, part.kv_rank if forms.latent == 1 and not forms.flash else 0
    if not release.has("keeps_latent"):
        return shape.key * shape.heads, shape.value * shape.heads
    return row, 0 if release.has("stores_latent_once") else part.kv_rank

"""What a network remembers of each sequence: keys and values by token, windows, recurrent states, cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import lcm
from typing import Literal, NamedTuple

from everybyte.basics.dtypes import DType
from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network, declare
from everybyte.layers.recording.size import Batch, elements
from everybyte.layers.recording.tape import Cache
from everybyte.ledger.build import Line, Text
from everybyte.models.count import DECLARE, parts
from everybyte.rules.accounting.formula_text import Letters, add_up, times

SOURCE = "what each layer declares as its cache; transformers cache_utils.py"


class Store(NamedTuple):
    """The caches of one piece of the network, in elements."""

    label: str
    copies: int
    caches: tuple[Cache, ...]


@lru_cache(maxsize=256)
def stores(network: Network) -> tuple[Store, ...]:
    """All pieces that remember something."""
    found = []
    for part in parts(network):
        caches = declare(part.layer, DECLARE, part.dims).caches
        if caches:
            found.append(Store(part.label, part.copies, caches))
    return tuple(found)


def passes_window(network: Network, tokens: int) -> bool:
    """Whether sequences are so long that some layer's window cuts them off: transformers then makes a mask for it
    (masking_utils.py _can_skip_causal_mask)."""
    return any(0 < cache.window <= tokens for store in stores(network) for cache in store.caches)


class Format(NamedTuple):
    """How cached numbers are stored: bytes of `elements` numbers for one sequence's part of one layer."""

    dtype: DType
    bits: int = 0
    """Of a quantised cache; 0: plain numbers."""
    group: int = 64
    residual: int = 128
    """The newest tokens stay plain (transformers QuantizedLayer)."""

    def nbytes(self, width: int, tokens: int, sequences: int) -> int:
        """Bytes of `tokens` tokens of `width` numbers each, for all sequences."""
        if not self.bits:
            return self.dtype.nbytes(width * tokens) * sequences
        plain = min(tokens, self.residual)
        packed = width * (tokens - plain)
        # each group of numbers has a scale and a zero point in the plain type
        quantised = ceil_div(packed * self.bits, 8) + 2 * self.dtype.nbytes(ceil_div(packed, self.group))
        return (self.dtype.nbytes(width * plain) + quantised) * sequences


def tokens_kept(cache: Cache, batch: Batch, windows: bool) -> int:
    """Tokens that a cache holds for one sequence."""
    if cache.kind == "cross":
        return batch.m
    if cache.window and windows:
        return min(batch.t, cache.window)
    return batch.t // cache.every


def cache_bytes(store: Store, batch: Batch, kind: Format, *, windows: bool, wanted: Callable[[Cache], bool] = lambda cache: True) -> int:
    """Bytes of one piece's caches. `windows`: only what a window still reads is kept."""
    total = 0
    for cache in store.caches:
        if not wanted(cache):
            continue
        width = elements(cache.dims)[0]
        if cache.kind == "state":
            total += (cache.dtype or kind.dtype).nbytes(width) * batch.b
        else:
            form = Format(cache.dtype) if cache.dtype is not None else kind
            total += form.nbytes(width, tokens_kept(cache, batch, windows), batch.b)
    return total * store.copies


def cache_lines(network: Network, batch: Batch, kind: Format, *, windows: bool) -> Iterator[Line]:
    """One line for keys and values and one for recurrent states of each piece."""
    for store in stores(network):
        states = tuple(c for c in store.caches if c.kind == "state")
        others = tuple(c for c in store.caches if c.kind != "state")
        if others:
            yield _line("kv_cache", store._replace(caches=others), batch, kind, windows)
        if states:
            yield _line("state", store._replace(caches=states), batch, kind, windows)


def _line(category: Literal["kv_cache", "state"], store: Store, batch: Batch, kind: Format, windows: bool) -> Line:
    size = cache_bytes(store, batch, kind, windows=windows)
    return Line(f"{category}/{store.label}", category, size, lambda: _text(store.caches, store.copies, batch, kind, windows), SOURCE)


def _text(caches: tuple[Cache, ...], copies: int, batch: Batch, kind: Format, windows: bool) -> Text:
    letters = Letters((), batch)
    terms: dict[str, int] = {}
    for cache in caches:
        key = _one_text(letters, cache, batch, kind, windows)
        terms[key] = terms.get(key, 0) + 1
    return Text(times(copies, add_up(terms)), letters.symbols)


def _one_text(letters: Letters, cache: Cache, batch: Batch, kind: Format, windows: bool) -> str:
    """Bytes of one cache of a layer."""
    sequences, width = letters.named("b", batch.b), letters.product(cache.dims)
    each = (cache.dtype or kind.dtype).block_bytes
    if cache.kind == "state":
        return f"{each}·{sequences}·{width}"
    span = _span_text(letters, cache, batch, windows)
    if cache.dtype is not None or tokens_kept(cache, batch, windows) <= kind.residual or not kind.bits:
        return f"{each}·{sequences}·{span}·{width}"
    newest = letters.named("R", kind.residual)
    older = f"({span} - {newest})·{width}"
    return f"{sequences}·({each}·{newest}·{width} + ceil({older}·{kind.bits}/8) + {2 * each}·ceil({older}/{kind.group}))"


def _span_text(letters: Letters, cache: Cache, batch: Batch, windows: bool) -> str:
    """Tokens of one sequence."""
    if cache.kind == "cross":
        return letters.named("m", batch.m)
    tokens = letters.named("t", batch.t)
    if cache.every > 1:
        return f"floor({tokens}/{cache.every})"
    return f"min({tokens}, {letters.named('w', cache.window)})" if cache.window and windows else tokens


class Price(NamedTuple):
    """Bytes of a cache by kind, for one sequence or token."""

    per_token: int
    """One more token of one sequence, layers with windows left out once they are full."""
    windows: int
    states: int
    all: int


def price(network: Network, batch: Batch, kind: Format, *, windows: bool) -> Price:
    """Cache figures at a batch: growth by a token, sliding-window part, recurrent states, everything."""
    found = stores(network)
    plain = Format(kind.dtype, kind.bits, kind.group, 0)
    span = lcm(*(cache.every for store in found for cache in store.caches))
    token = ceil_div(sum(cache_bytes(s, Batch(1, 1, span, 0), plain, windows=False, wanted=lambda c: c.kind == "kv") for s in found), span)
    window = sum(cache_bytes(s, batch, kind, windows=windows, wanted=lambda c: c.window > 0) for s in found)
    states = sum(cache_bytes(s, batch, kind, windows=windows, wanted=lambda c: c.kind == "state") for s in found)
    return Price(token, window, states, sum(cache_bytes(s, batch, kind, windows=windows) for s in found))


LATENT = "latent"
"""How layers of multi-head latent attention (MLA) call what they store."""


def is_latent(network: Network) -> bool:
    """Whether attention stores latents (MLA)."""
    return any(cache.name == LATENT for store in stores(network) for cache in store.caches)

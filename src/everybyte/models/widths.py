"""The sizes of a network that parallel axes divide: attention heads, feed-forward widths, experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from everybyte.basics.record import Record
from everybyte.layers.attention.compressed import CompressedIndexer
from everybyte.layers.attention.indexer import BlockIndexer, Indexer
from everybyte.layers.attention.mla import MLA
from everybyte.layers.experts.routed import Experts
from everybyte.layers.network import Network
from everybyte.layers.recurrent.delta_net import GatedDeltaNet
from everybyte.layers.recurrent.kda import KimiDeltaAttention
from everybyte.layers.recurrent.mamba2 import Mamba2

APART = (Indexer, BlockIndexer, CompressedIndexer, Mamba2, GatedDeltaNet, KimiDeltaAttention)
"""Layers whose heads are no attention heads: whether and how they are split is the engine's own rule."""


class Widths(Record, frozen=True):
    """Distinct sizes over the blocks of the main network, each in order of first use; empty where the network has no such layer."""

    heads: tuple[tuple[int, int], ...]
    """(query heads, heads of keys and values) of every kind of attention."""
    ffn: tuple[int, ...]
    """Widths of dense feed-forward layers, shared experts among them."""
    expert_ffn: tuple[int, ...]
    """Widths of routed experts."""
    experts: int
    """Routed experts of a layer; 0 for a dense network."""


@lru_cache(maxsize=256)
def widths_of(network: Network) -> Widths:
    """The sizes that parallel axes divide. Any network has an answer; one without attention has no heads."""
    found: dict[str, dict[Any, None]] = {"heads": {}, "ffn": {}, "expert": {}, "count": {network.experts: None}}
    for part in (part for run in network.runs for part in _parts(run.layer)):
        if isinstance(part, Experts):
            found["expert"][part.ffn] = None
            found["count"][part.count] = None
        elif isinstance(ffn := getattr(part, "ffn", None), int):
            found["ffn"][ffn] = None
        if isinstance(heads := getattr(part, "heads", None), int):
            found["heads"][heads, getattr(part, "kv_heads", heads)] = None
    return Widths(tuple(found["heads"]), tuple(found["ffn"]), tuple(found["expert"]), max(found["count"]))


class HeadSizes(NamedTuple):
    """Query heads of a kind of attention, and the sizes of their keys and values."""

    heads: int
    key: int
    value: int


@lru_cache(maxsize=256)
def head_sizes(network: Network) -> tuple[HeadSizes, ...]:
    """Every kind of attention over the blocks of the main network, in order of first use, as it computes a prompt: latent keys are spread to all heads."""
    found: dict[HeadSizes, None] = {}
    for part in (part for run in network.runs for part in _parts(run.layer)):
        if isinstance(part, MLA):
            found[HeadSizes(part.heads, part.nope + part.rope, part.v_dim)] = None
        elif isinstance(heads := getattr(part, "heads", None), int) and isinstance(size := getattr(part, "head_dim", None), int):
            found[HeadSizes(heads, size, getattr(part, "v_dim", 0) or size)] = None
    return tuple(found)


def _parts(layer: Any) -> Iterator[Any]:
    """The layer and all layers inside it."""
    if isinstance(layer, tuple):
        for part in layer:
            yield from _parts(part)
    elif isinstance(layer, msgspec.Struct) and not isinstance(layer, APART):
        yield layer
        for name in layer.__struct_fields__:
            yield from _parts(getattr(layer, name))

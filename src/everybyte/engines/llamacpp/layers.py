"""The blocks of a network one by one, and what llama.cpp makes of their windows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everybyte.engines.llamacpp.graph.attention import Shape
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.attention.mla import MLA
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.gemma4 import Gemma4Attention
from everybyte.layers.network import Network, declare, hidden_dims
from everybyte.layers.recording.tape import Cache
from everybyte.models.count import DECLARE

MIXERS = ("mixer", "attention", "mamba")
"""Fields of blocks that hold a mixer."""


@lru_cache(maxsize=256)
def blocks_of(network: Network) -> tuple[Any, ...]:
    """Every block in order, without those of multi-token prediction."""
    blocks = [run.layer for run in network.runs for _ in range(run.count)]
    return tuple(blocks[: network.layers])


def parts_of(block: Any) -> list[Any]:
    """The mixers of a block that may have a cache."""
    return [part for part in (getattr(block, name, None) for name in MIXERS) if part is not None and not isinstance(part, MultiHead)]


def attention_of(part: Any) -> Shape | None:
    """Heads of a mixer that has a cache of keys and values as llama.cpp stores it; None for others."""
    if isinstance(part, Attention):
        return Shape(part.heads, part.kv_heads, part.head_dim, part.v_dim or part.head_dim)
    if isinstance(part, Gemma4Attention):
        return Shape(part.heads, part.kv_heads, part.head_dim, part.head_dim)
    if isinstance(part, MultiHead):
        return Shape(part.heads, part.heads, part.head_dim, part.head_dim)
    if isinstance(part, MLA):
        return Shape(part.heads, part.heads, part.nope + part.rope, part.v_dim)
    return None


def is_windowed(part: Any) -> bool:
    """Whether a mixer sees a window only."""
    return bool(getattr(part, "window", 0))


@lru_cache(maxsize=1024)
def caches_of(block: Any, hidden: int) -> tuple[Cache, ...]:
    """What a block declares to remember."""
    return declare(block, DECLARE, hidden_dims(hidden)).caches


@lru_cache(maxsize=256)
def knows_windows(network: Network) -> bool:
    """llama.cpp gives windows a cache of their own where some layers slide and others do not (Gemma, gpt-oss, Cohere 2); models in which every layer
    slides (Mistral 7B v0.1, Phi-3, StarCoder 2) are run as if none did (llama-model.cpp: swa_type is set for patterns)."""
    found = {cache.window > 0 for block in blocks_of(network) for cache in caches_of(block, network.hidden) if cache.kind == "kv"}
    return found == {True, False}

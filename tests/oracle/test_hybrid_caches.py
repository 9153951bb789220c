"""What a model with latent attention, windows, compressed entries or states remembers is what transformers' caches hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hybrids import CASES, config_of, model_of

from everybyte.basics.dtypes import BF16
from everybyte.layers.recording.size import Batch
from everybyte.models.registry import build
from everybyte.rules.step.cache import Format, cache_bytes, stores

BOTH: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
MIXED: dict[str, dict[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granite-hybrid": BOTH,
    "qwen3-next-linear": BOTH,
    "qwen3.5": BOTH,
    "qwen3.5-moe": BOTH,
    "kimi-linear": BOTH,
    "nemotron-h-mamba": {"layers_block_type": ["mamba", "attention"]},
    "nemotron-h-mlp": {"layers_block_type": ["mlp", "attention"]},
    "nemotron-h-moe": {"layers_block_type": ["moe", "attention"]},
}
"""A layer with states beside one with keys, where a model of states alone has no cache of its own in transformers."""
TOKENS = 31
"""Shorter than every window, and one less than full windows of compressed tokens."""


def tensors(item: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor below a cache; what its name hides (counters on the device) is left out."""
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, torch.Tensor):
        if item.numel():
            yield item
    elif isinstance(item, dict | list | tuple):
        for below in item.values() if isinstance(item, dict) else item:
            yield from tensors(below, seen)
    elif "Cache" in type(item).__name__ or "Layer" in type(item).__name__:
        for name, below in vars(item).items():
            if not name.startswith("_"):
                yield from tensors(below, seen)


def remembered(model: Any, b: int, tokens: int, generated: int) -> int:
    """Bytes that the cache holds after a prompt and `generated` tokens."""
    ids = torch.randint(0, 512, (b, tokens))
    with torch.no_grad():
        out = model(input_ids=ids[:, : tokens - generated], use_cache=True)
        name = "cache" if hasattr(out, "cache") else "past_key_values"
        cache = out[name]
        for index in range(tokens - generated, tokens):
            model(input_ids=ids[:, index : index + 1], use_cache=True, **{name: cache})
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(cache, set())}
    return sum(storages.values())


@pytest.mark.parametrize("name", CASES)
def test_caches_hold_what_we_say(name: str) -> None:
    """After a prompt and some tokens more, keys, values, latents, compressed entries and states are equal to the byte."""
    config = config_of(name, 2, **MIXED.get(name, {}))
    network = build({**config.to_dict(), "architectures": config.architectures})
    ours = sum(cache_bytes(store, Batch(2, 1, TOKENS), Format(BF16), windows=True) for store in stores(network))
    assert ours == remembered(model_of(config).eval(), 2, TOKENS, 5)


@pytest.mark.parametrize("name", ["gpt-oss", "mimo-v2", "step-3.7-sliding", "llama4-rope", "deepseek-v4-sliding"])
def test_a_full_window_does_not_grow(name: str) -> None:
    """Keys of a whole prompt are held until the next token comes; from then on a layer holds what its window reads (DynamicSlidingWindowLayer)."""
    more: dict[str, Any] = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 16} if name != "llama4-rope" else {"attention_chunk_size": 16}
    config = config_of(name, 2, **more)
    network = build({**config.to_dict(), "architectures": config.architectures})
    model = model_of(config).eval()

    def ours(tokens: int, windows: bool) -> int:
        return sum(cache_bytes(store, Batch(2, 1, tokens), Format(BF16), windows=windows) for store in stores(network))

    assert ours(40, False) == remembered(model, 2, 40, 0)
    assert ours(40, True) == ours(16, True) == remembered(model, 2, 40, 5)

"""Bytes kept for backward by the blocks of Gemma 4, to the byte against transformers on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from module_bytes import difference, layer_keeps, module_keeps
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

from everybyte.layers.network import hidden_dims
from everybyte.layers.recording.size import Batch
from everybyte.models.registry import build

B, S, H, OWN = 2, 24, 96, 16
KINDS: dict[str, dict[str, Any]] = {
    "dense": {"hidden_size_per_layer_input": 0},
    "inputs of each layer's own": {"hidden_size_per_layer_input": OWN},
    "shared keys and values": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2},
    "experts": {
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 40,
    },
}


@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks(kind: str, attention: str, amp: bool) -> None:
    """A sliding and a full layer of each kind: heads of two widths, norms on q, k and v, values that are keys, experts beside the dense layer."""
    dtype = torch.float32 if amp else torch.bfloat16
    config = Gemma4TextConfig(
        hidden_size=H,
        intermediate_size=200,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        vocab_size=100,
        vocab_size_per_layer_input=100,
        layer_types=["sliding_attention", "full_attention"] * 2,
        **KINDS[kind],
    )
    config._attn_implementation = attention
    model = Gemma4ForCausalLM(config).to(dtype)
    fields = {key: value for key, value in config.to_dict().items() if key != "per_layer_config"}
    fields |= {"architectures": ["Gemma4ForCausalLM"], "global_head_dim": 32, **KINDS[kind]}
    blocks = [run.layer for run in build(json.loads(json.dumps(fields))).runs for _ in range(run.count)]
    x = torch.randn(B, S, H, dtype=dtype, requires_grad=True) * 1
    own = torch.randn(B, S, OWN, dtype=dtype, requires_grad=True) * 1 if kind.startswith("inputs") else None
    for index, (name, head_dim) in ((2, ("sliding_attention", 16)), (3, ("full_attention", 32))):
        turns = tuple(torch.randn(1, S, head_dim, dtype=dtype) for _ in range(2))
        earlier = tuple(torch.randn(B, 2, S, head_dim, dtype=dtype, requires_grad=True) * 1 for _ in range(2))
        layer = model.model.layers[index]
        measured = module_keeps(model, lambda: layer(x, own, {name: earlier}, turns), amp, (*turns, *earlier, *([own] if own is not None else [])))  # noqa: B023
        ours = layer_keeps(blocks[index], hidden_dims(H), Batch(B, S, S), amp, attention=attention)
        assert measured == ours, difference(measured, ours)

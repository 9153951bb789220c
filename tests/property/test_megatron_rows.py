"""Rows of Megatron-LM's ranks: each explains itself, and all add up."""

from __future__ import annotations

from typing import Any

import pytest
from rows_of_ranks import all_explained

GPT = {"family": "gpt", "layers": 16, "hidden": 256, "ffn": 1024, "heads": 8, "kv_heads": 4, "vocab": 50257, "max_positions": 1024}
MOE = {
    "family": "mla",
    "layers": 8,
    "hidden": 256,
    "ffn": 1024,
    "heads": 8,
    "vocab": 32000,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 128,
    "mtp": 1,
    "shared_expert_ffn": 128,
    "moe_layers": [1, 2, 3, 4, 5, 6, 7],
    "mla": {"q_lora": 96, "kv_lora": 64, "qk_nope": 32, "qk_rope": 16, "v": 32},
}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensor and pipeline": (GPT, {"mesh": {"tp": 2, "sp": True, "pp": 2}}),
    "distributed optimizer": (GPT, {"sharding": "distributed-optimizer", "extra": {"overlap-grad-reduce": True}}),
    "interleaved": (GPT, {"mesh": {"pp": 4}, "pipeline": {"virtual": 4}}),
    "half precision": (GPT, {"precision": "fp16-master", "mesh": {"pp": 4}}),
    "recomputed": (GPT, {"recompute": {"policy": "full", "method": "block", "layers": 3}, "mesh": {"pp": 2}}),
    "experts": (MOE, {"mesh": {"tp": 2, "sp": True, "pp": 2, "ep": 2, "etp": 1}, "sharding": "distributed-optimizer"}),
    "experts in fp8": (MOE, {"mesh": {"ep": 4}, "precision": "fp8", "sharding": "distributed-optimizer"}),
    "muon": (GPT, {"optimizer": {"name": "muon"}, "sharding": "distributed-optimizer", "extra": {"no-use-layer-wise-param-layout": True}}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows(name: str) -> None:
    """The formula of every row gives its bytes with the numbers put in; rows of a phase add up to it; what is reserved is no less than what is allocated."""
    shape, train = LAYOUTS[name]
    job = {
        "model": {"shape": shape},
        "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8},
        "train": {"framework": "megatron", "micro_batch": 1, "seq_len": 1024, "grad_accum": 8, **train},
    }
    all_explained(job)

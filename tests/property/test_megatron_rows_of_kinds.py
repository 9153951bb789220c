"""Rows of Megatron-LM's other models and shardings: each explains itself, and all add up."""

from __future__ import annotations

from typing import Any

import pytest
from rows_of_ranks import all_explained

BERT = {"family": "bert", "layers": 8, "hidden": 256, "ffn": 1024, "heads": 8, "vocab": 30522, "max_positions": 512}
HYBRID = {
    "family": "hybrid",
    "layers": 7,
    "hidden": 256,
    "ffn": 512,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "vocab": 32000,
    "activation": "squared-relu",
    "position": "none",
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 128,
    "shared_expert_ffn": 256,
    "mtp": 2,
    "pattern": "MEM*-EM/*E/*E",
    "ssm": {"heads": 8, "head_dim": 32, "state": 64, "groups": 4},
}
MLA = {
    "family": "mla",
    "layers": 4,
    "hidden": 256,
    "ffn": 1024,
    "heads": 8,
    "vocab": 32000,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 128,
    "moe_layers": [1, 2, 3],
    "mla": {"q_lora": 96, "kv_lora": 64, "qk_nope": 32, "qk_rope": 16, "v": 32},
}
FP8 = {"precision": "fp8", "attention": "unfused", "extra": {"fp8-param-gather": True}}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": (BERT, {"mesh": {"tp": 2, "pp": 2}}),
    "bert with sequence parallelism": (BERT, {"mesh": {"tp": 4, "sp": True}}),
    "bert's local layers": (BERT, {"extra": {"transformer-impl": "local", "bert-no-binary-head": True}}),
    "hybrid": (HYBRID, {"mesh": {"tp": 2, "sp": True, "ep": 2}, "sharding": "distributed-optimizer"}),
    "hybrid with one block for all depths": (HYBRID, {"mesh": {"ep": 4}, "extra": {"mtp-use-repeated-layer": True}}),
    "megatron-fsdp": (MLA, {"mesh": {"ep": 2}, "sharding": "megatron-fsdp"}),
    "megatron-fsdp in fp8": (MLA, {"mesh": {"ep": 2}, "sharding": "megatron-fsdp", **FP8}),
    "megatron-fsdp, states alone": (MLA, {"sharding": "megatron-fsdp", "extra": {"data-parallel-sharding-strategy": "optim"}}),
    "megatron-fsdp before 0.19": (MLA, {"sharding": "megatron-fsdp", "version": "Megatron Core 0.18"}),
}


@pytest.mark.parametrize("name", KINDS)
def test_rows(name: str) -> None:
    """The formula of every row gives its bytes with the numbers put in; rows of a phase add up to it; what is reserved is no less than what is allocated."""
    shape, train = KINDS[name]
    job = {
        "model": {"shape": shape},
        "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8},
        "train": {"framework": "megatron", "micro_batch": 2, "seq_len": 512, "grad_accum": 8, **train},
    }
    all_explained(job)

"""Rows of torchtitan's, prime-rl's and xtuner's answers: every formula, put into numbers, gives the row's bytes."""

from __future__ import annotations

from typing import Any

import pytest
from arithmetic_of_rows import calculate

from everybyte import estimate

MOE = {
    "family": "moe",
    "layers": 2,
    "hidden": 512,
    "ffn": 1024,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 64,
    "vocab": 1024,
    "norm": "rmsnorm",
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 256,
    "moe_layers": [0, 1],
}
LLAMA = {"family": "llama", "layers": 4, "hidden": 512, "ffn": 1024, "heads": 8, "kv_heads": 4, "head_dim": 64, "vocab": 1024, "norm": "rmsnorm"}
TITAN = {"framework": "torchtitan", "micro_batch": 2, "seq_len": 512}
PRIME = {"framework": "pytorch", "micro_batch": 1, "seq_len": 512, "sharding": "fsdp2", "recompute": "full"}


def prime(kind: str, **more: Any) -> dict[str, Any]:
    """A job of prime-rl."""
    extra = {"framework": "prime-rl", "type": kind, **({"max_concurrent_runs": 2} if "adapter" in more else {})}
    return {**PRIME, **more, "extra": extra}


@pytest.mark.parametrize(
    ("shape", "gpus", "train"),
    [
        (LLAMA, 8, TITAN),
        (LLAMA, 8, {**TITAN, "compile": True, "version": "2025-08"}),
        (LLAMA, 8, {**TITAN, "mesh": {"tp": 4, "sp": True}}),
        (LLAMA, 8, {**TITAN, "mesh": {"pp": 2}, "grad_accum": 4}),
        (LLAMA, 8, {**TITAN, "sharding": "hsdp", "recompute": "none"}),
        (LLAMA, 8, {**TITAN, "mesh": {"pp": 2}, "grad_accum": 2, "pipeline": {"schedule": "interleaved", "virtual": 2}}),
        (LLAMA, 8, {**PRIME, "extra": {"framework": "xtuner"}}),
        (MOE, 4, {**TITAN, "mesh": {"ep": 4}}),
        (LLAMA, 4, prime("rl")),
        (LLAMA, 1, prime("sft")),
        (MOE, 4, prime("rl", adapter={"kind": "lora", "rank": 8})),
    ],
)
def test_formulas_give_the_bytes(shape: dict[str, Any], gpus: int, train: dict[str, Any]) -> None:
    """For every entry of every kind of rank."""
    answer = estimate({"model": {"shape": shape}, "hardware": {"gpu": "h100", "gpus": gpus}, "train": train})
    for rank in answer.ranks:
        for entry in rank.ledger:
            assert calculate(entry.formula, entry.symbols) == entry.bytes, entry
        assert rank.figures["peak.reserved"] >= rank.figures["peak.allocated"] >= rank.figures["static.allocated"] > 0

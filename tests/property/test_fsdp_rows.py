"""Rows of fine-tuning jobs on several GPUs: formulas give their bytes, rows add up, headlines agree, more ranks never hold more shards."""

from __future__ import annotations

from typing import Any

import pytest
from arithmetic_of_rows import calculate

from everybyte import estimate, headline
from everybyte.ledger.entry import OUTSIDE_ALLOCATOR

LLAMA = {"family": "llama", "layers": 4, "hidden": 512, "ffn": 1024, "heads": 8, "kv_heads": 4, "head_dim": 64, "vocab": 1024, "norm": "rmsnorm"}
LORA = {"kind": "lora", "rank": 8}
TRAINER = {"framework": "transformers", "micro_batch": 2, "seq_len": 256, "precision": "bf16-mixed"}
OLD = {**TRAINER, "version": "transformers 4.45.2, accelerate 1.0.1", "recompute": {"policy": "full", "reentrant": True}}
LITGPT = {"framework": "litgpt", "version": "2024", "micro_batch": 2, "seq_len": 256, "precision": "bf16", "recompute": "full"}
TUNE = {"framework": "torchtune", "micro_batch": 2, "seq_len": 256}
JOBS: tuple[dict[str, Any], ...] = (
    {**TRAINER, "sharding": "ddp"},
    {**TRAINER, "sharding": "ddp", "extra": {"gradient_as_bucket_view": True}},
    {**TRAINER, "sharding": "fsdp1"},
    {**TRAINER, "sharding": "fsdp1-grad-op", "grad_accum": 4},
    {**OLD, "sharding": "fsdp1"},
    {**OLD, "sharding": "fsdp1", "adapter": LORA},
    {**OLD, "sharding": "fsdp1", "adapter": LORA, "quantization": {"format": "nf4"}, "framework": "trl"},
    {**TRAINER, "sharding": "fsdp1", "offload": {"params": "cpu"}},
    {**TRAINER, "sharding": "fsdp2"},
    {**TRAINER, "sharding": "fsdp2-no-reshard"},
    {**TRAINER, "sharding": "fsdp2", "grad_accum": 4},
    {**TRAINER, "sharding": "fsdp2", "offload": {"params": "cpu"}, "recompute": "full"},
    {**TRAINER, "sharding": "fsdp2", "adapter": LORA},
    {**TRAINER, "sharding": "hsdp", "mesh": {"dp_shard": 2}},
    {**TRAINER, "framework": "pytorch", "sharding": "fsdp2", "precision": "fp32"},
    {**TRAINER, "framework": "axolotl", "sharding": "fsdp2", "grad_accum": 2},
    LITGPT,
    {**LITGPT, "adapter": LORA, "version": "2023-10", "grad_accum": 8},
    {**LITGPT, "adapter": LORA, "version": "2025-12"},
    {**LITGPT, "sharding": "ddp"},
    TUNE,
    {**TUNE, "adapter": LORA},
    {**TUNE, "offload": {"params": "cpu"}},
)


def job(train: dict[str, Any], gpus: int = 4) -> dict[str, Any]:
    """A job of the small model."""
    return {"model": {"shape": LLAMA}, "hardware": {"gpu": "h100", "gpus": gpus}, "train": train}


def name(train: dict[str, Any]) -> str:
    """What is special about a job."""
    return "-".join(str(train[key]) for key in ("framework", "version", "sharding", "adapter", "grad_accum", "offload", "extra") if key in train)


@pytest.mark.parametrize("train", JOBS, ids=name)
def test_formulas_give_the_bytes(train: dict[str, Any]) -> None:
    """Every row of every phase, its sums, and the figures that need no rows."""
    asked = job(train)
    answer = estimate(asked)
    (rank,) = answer.ranks
    for entry in rank.ledger:
        assert entry.bytes > 0
        assert calculate(entry.formula, entry.symbols) == entry.bytes, entry
    for phase in rank.phases:
        assert sum(e.bytes for e in rank.ledger if phase.name in e.phases and e.category not in OUTSIDE_ALLOCATOR) == phase.allocated
    assert headline(asked)["peak.allocated"] == answer.figures["peak.allocated"] <= answer.figures["peak.reserved"]


@pytest.mark.parametrize("train", [t for t in JOBS if t.get("sharding") != "ddp" and "mesh" not in t], ids=name)
def test_more_ranks_hold_less(train: dict[str, Any]) -> None:
    """Between two steps a rank of eight has at most what a rank of two has."""
    two, eight = (headline(job(train, gpus))["static.allocated"] for gpus in (2, 8))
    assert eight <= two

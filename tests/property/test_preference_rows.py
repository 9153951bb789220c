"""Rows of preference runs on several GPUs: every formula put into numbers gives the bytes of its row."""

from __future__ import annotations

import math

import pytest
from arithmetic_of_rows import calculate

from everybyte import estimate
from everybyte.rules.preference.model_roles import ALGORITHMS


@pytest.mark.parametrize("sharding", ["ddp", "zero3", "fsdp2"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_formulas_give_the_bytes(name: str, sharding: str) -> None:
    """A reader with a pocket calculator gets the same number, for companions, rollouts, engines and NCCL's buffers as for everything else."""
    extra = {"rlhf_type": name, "beta": 0.1, "max_completion_length": 100, "response_length": 100}
    if name == "grpo":
        extra |= {"use_vllm": True}
    train = {"framework": "trl", "version": "trl 0.24", "micro_batch": 2, "seq_len": 256, "precision": "bf16", "sharding": sharding, "extra": extra}
    answer = estimate({"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "h100-sxm5-80gb", "gpus": 4}, "train": train})
    for entry in answer.worst.ledger:
        assert math.isclose(calculate(entry.formula, entry.symbols), entry.bytes), entry.id
        assert entry.source

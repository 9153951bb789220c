"""Unsloth as a framework that an estimate answers."""

from __future__ import annotations

from typing import Any

from everybyte import estimate
from everybyte.job import read_job
from everybyte.ledger.answer import Answer


def answer(framework: str, **train: Any) -> Answer:
    """A QLoRA run of an 8B model at 8,192 tokens."""
    adapter = {"kind": "lora", "rank": 16, "targets": "all-linear"}
    asked = {"framework": framework, "micro_batch": 1, "seq_len": 8192, "optimizer": "adamw-8bit", "adapter": adapter, **train}
    base = {"quantization": {"format": "nf4", "double": True}}
    return estimate(read_job({"model": "meta-llama/Meta-Llama-3.1-8B", "hardware": {"gpu": "a100-40gb"}, "train": {**base, **asked}}))


def row(answered: Answer, name: str) -> int:
    """Bytes of one row of the worst rank."""
    return next(entry.bytes for entry in answered.worst.ledger if entry.id == name)


def test_inputs_of_blocks_wait_in_host_memory_unless_the_job_says_otherwise() -> None:
    """Unsloth's checkpoints lie on the host where a job is silent; without the offload each of 32 blocks keeps 2·s·h bytes."""
    usual, kept = answer("unsloth"), answer("unsloth", recompute={"policy": "full", "offload": False})
    one = 2 * 8192 * 4096
    assert row(usual, "activations/layers.0-31/input") == one  # one on its way to the host
    assert row(kept, "activations/layers.0-31/input") == 31 * one  # the last block's counts as working memory


def test_the_loader_casts_nothing_back_to_fp32() -> None:
    """Embedding and norms keep 16 bits: half of what they take in a run that peft prepares."""
    assert row(answer("unsloth"), "weights/embed/model") == 2 * 128256 * 4096
    assert row(answer("transformers", precision="bf16-mixed", recompute="full"), "weights/embed/model") == 4 * 128256 * 4096


def test_logits_are_never_whole() -> None:
    """The fused loss saves more than the fp32 logits of a standard one."""
    saved = answer("unsloth", loss="standard").figures["peak.allocated"] - answer("unsloth").figures["peak.allocated"]
    assert saved > 4 * 8192 * 128256 // 2

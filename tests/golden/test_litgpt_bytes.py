"""Bytes that LitGPT's own code was seen to keep, against our account of it.

The numbers of `data/litgpt_kept_bytes.csv` were made with litgpt 0.4.4, 0.4.8 and 0.5.13 from PyPI and torch 2.13.0 on the CPU: small models of
2 and of 3 blocks in bf16 (micro-batch 2, 96 tokens, width 128) ran forward under `torch.autograd.graph.saved_tensors_hooks`; a row is the
difference of the bytes of their saved tensors, parameters, buffers and ids left out.

PEAKS were made with LitGPT's model and loss at the named day, run for three micro-batches as its scripts do on tensors without memory, with a
stand-in for bitsandbytes that copies its MatMul4Bit: the highest sum of living storages, without optimizer states and without the allocator's
rounding, which the account has.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.dtypes import BF16
from everybyte.engines.litgpt.block import LitBlock, LitNorm
from everybyte.engines.litgpt.release import release_of
from everybyte.engines.litgpt.sizes import Sizes
from everybyte.engines.litgpt.train import SCALED_NORMS
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Adapter, Kernels, Setup
from everybyte.layers.recording.size import Batch, Point

SHARED = {"hidden": 128, "heads": 8, "softcap": False, "unit_offset": False, "post_norms": False}
GATED = {**SHARED, "qkv_bias": False, "out_bias": False, "mlp_bias": False, "gated": True, "norm": "rms", "parallel": False, "shared_norm": False}
LLAMA = {**GATED, "head_size": 16, "rotary": 16, "ffn": 352, "activation": "silu"}
GEMMA = {**GATED, "head_size": 32, "rotary": 32, "ffn": 512, "activation": "gelu_tanh"}
PLAIN = {
    **SHARED,
    "head_size": 16,
    "groups": 8,
    "qkv_bias": True,
    "out_bias": True,
    "ffn": 512,
    "gated": False,
    "mlp_bias": True,
    "norm": "layer",
    "parallel": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "groups": 8},
    "grouped": {**LLAMA, "groups": 2},
    "neox": {**PLAIN, "activation": "gelu", "rotary": 4, "shared_norm": False},
    "phi": {**PLAIN, "activation": "gelu_tanh", "rotary": 8, "shared_norm": True},
    "gemma": {**GEMMA, "groups": 1},
    "gemma2": {**GEMMA, "groups": 4, "post_norms": True, "softcap": True},
}
ADAPTERS = {
    "full": None,
    "lora-qv": Adapter("lora", 8, ("query", "value"), BF16, 0.05),
    "lora-all": Adapter("lora", 8, ("query", "key", "value", "projection", "mlp", "head"), BF16, 0.05),
    "adapter-v2": Adapter("adapter-v2", 0, (), BF16),
}


def recorded() -> list[tuple[str, str, str, int]]:
    """(release, model, adapter, bytes)."""
    with (Path(__file__).parent / "data" / "litgpt_kept_bytes.csv").open() as file:
        return [(row["release"], row["model"], row["adapter"], int(row["bytes"])) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("version", "model", "kind", "expected"), recorded())
def test_a_block_keeps_what_litgpt_keeps(version: str, model: str, kind: str, expected: int) -> None:
    """To the byte, for full training, LoRA on some and on all layers, and Adapter v2 without its prompt."""
    release, adapter, sizes = release_of(version), ADAPTERS[kind], Sizes(**MODELS[model])
    block = LitBlock(sizes, LitNorm(sizes.norm, sizes.unit_offset, release.has("half_product")), release)
    trainable = ("*",) if adapter is None else (SCALED_NORMS if kind == "adapter-v2" else ())
    setup = Setup(weights=BF16, trainable=trainable, adapter=adapter, kernels=Kernels(device="cpu"))
    tally = write(block, setup, hidden_dims(128), BF16).tally
    assert tally.kept_size.at(Point(Batch(2, 96, 96))) == expected


QV, ALL = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}, {"kind": "lora", "rank": 8, "targets": "all-linear"}
NF4, DOUBLE = {"format": "nf4"}, {"format": "nf4", "double": True}
PEAKS: list[tuple[str, str, dict[str, Any] | None, dict[str, Any] | None, tuple[int, int, int], int]] = [
    ("2024-07-22", "meta-llama/Llama-2-7b-hf", QV, None, (2, 512, 2), 19614425856),
    ("2024-07-22", "meta-llama/Llama-2-7b-hf", QV, NF4, (2, 512, 2), 13547037440),
    ("2024-07-22", "mistralai/Mistral-7B-v0.1", ALL, DOUBLE, (1, 700, 2), 12527597504),
    ("2026-06-29", "google/gemma-2-2b", QV, None, (2, 512, 2), 13563511296),
    ("2024-01-18", "microsoft/phi-1_5", {"kind": "adapter-v2"}, NF4, (1, 1044, 1), 4577382508),
    ("2024-01-18", "meta-llama/Llama-2-7b-hf", {"kind": "adapter"}, None, (1, 1304, 1), 19907692188),
    ("2024-04-26", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", None, None, (4, 512, 2), 9655284252),
]
WORKSPACES = 2 * 8_519_680


@pytest.mark.parametrize(("version", "model", "adapter", "quantization", "batch", "expected"), PEAKS)
def test_the_peak_is_that_of_litgpts_code(
    version: str, model: str, adapter: dict[str, Any] | None, quantization: dict[str, Any] | None, batch: tuple[int, int, int], expected: int
) -> None:
    """Within half a percent: the traced code has no allocator, which rounds large weights up."""
    train = {"framework": "litgpt", "version": version, "precision": "bf16", "optimizer": {"name": "sgd"}}
    train |= dict(zip(("micro_batch", "seq_len", "grad_accum"), batch, strict=True))
    train |= {key: value for key, value in (("adapter", adapter), ("quantization", quantization)) if value}
    found = estimate({"model": model, "train": train}).figures["peak.allocated"] - WORKSPACES
    assert abs(found / expected - 1) < 0.005

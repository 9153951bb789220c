"""The words that a job may use where its form allows only some (contract, section 1)."""

from __future__ import annotations

import re
from typing import Literal

Framework = Literal[
    "pytorch",
    "accelerate",
    "transformers",
    "trl",
    "axolotl",
    "llama-factory",
    "torchtune",
    "torchtitan",
    "litgpt",
    "nanogpt",
    "nemo",
    "megatron",
    "deepspeed",
    "unsloth",
    "textbook",
    "prime-rl",
    "xtuner",
    "nemo-automodel",
    "ms-swift",
]
"""Whose code runs the training step."""

Engine = Literal["vllm", "sglang", "llama.cpp", "ollama", "transformers", "tensorrt-llm", "lmdeploy", "tgi", "exllama", "mlx", "diffusers"]
"""Whose memory rules serve the model."""

Precision = Literal["fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master", "fp8"]
"""fp32, pure 16 bit, autocast over the stored weights (-mixed), 16-bit weights with a master copy (-master), fp8 compute."""

RecipeDType = Literal["fp32", "bf16", "fp16", "fp8", "none"]
"""One number format of a precision recipe."""

StateDType = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]
"""Format of the optimizer's moments."""

StorageDType = Literal["uint8", "int8", "int32", "fp32", "bf16", "fp16"]
"""Type of the tensor that packed weights lie in."""

FloatDType = Literal["fp32", "bf16", "fp16"]

OptimizerImpl = Literal["foreach", "fused", "for-loop"]

Sharding = Literal[
    "none",
    "ddp",
    "zero1",
    "zero2",
    "zero3",
    "fsdp1",
    "fsdp1-grad-op",
    "fsdp2",
    "fsdp2-no-reshard",
    "hsdp",
    "distributed-optimizer",
    "megatron-fsdp",
]
"""What the dp_shard axis shards."""

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"]

RecomputePolicy = Literal["none", "selective", "full"]

RecomputeMethod = Literal["uniform", "block"]

OffloadTarget = Literal["none", "cpu", "nvme"]

TrainAttention = Literal["eager", "sdpa", "flash2", "flash3", "te", "flex", "unfused"]

LossKind = Literal["standard", "compiled", "chunked", "fused-linear", "vocab-parallel"]

Kernel = Literal[
    "te",
    "apex",
    "liger",
    "unsloth",
    "cut-cross-entropy",
    "foak-ce",
    "foak-rms",
    "foak-rope",
    "foak-fused-lora",
    "foak-liger-flce",
    "mamba-ssm",
    "fla",
    "eager-scan",
]
"""Fused kernels that keep other tensors than the plain modules do."""

AdapterKind = Literal[
    "lora",
    "dora",
    "ia3",
    "prefix",
    "prompt",
    "p-tuning",
    "multitask-prompt",
    "adapter",
    "adapter-v2",
    "adaption-prompt",
    "adalora",
    "loha",
    "lokr",
    "oft",
    "boft",
    "vera",
    "xlora",
    "fourierft",
    "hra",
    "vblora",
    "ln-tuning",
    "bone",
    "miss",
    "cpt",
    "trainable-tokens",
    "randlora",
    "shira",
    "c3a",
    "road",
    "osf",
    "delora",
    "gralora",
    "waveft",
    "tinylora",
]

QuantFormat = Literal[
    "nf4",
    "fp4",
    "int8",
    "int4",
    "gptq",
    "awq",
    "aqlm",
    "autoround",
    "bitnet",
    "compressed-tensors",
    "eetq",
    "fp8",
    "higgs",
    "hqq",
    "mxfp4",
    "nvfp4",
    "quanto",
    "spqr",
    "torchao",
    "vptq",
]
"""Formats of frozen base weights in training."""

WEIGHT_FORMATS: tuple[str, ...] = (
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "int8",
    "int4",
    "nf4",
    "fp4",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "awq",
    "gptq",
    "autoround",
    "aqlm",
    "bitnet",
    "eetq",
    "higgs",
    "hqq",
    "marlin",
    "quanto",
    "spqr",
    "torchao",
    "vptq",
    "exl2",
    "exl3",
    "mixed",
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q5_k_s",
    "q5_1",
    "q5_0",
    "q4_k_m",
    "q4_k_s",
    "q4_1",
    "q4_0",
    "q3_k_l",
    "q3_k_m",
    "q3_k_s",
    "q2_k",
    "iq4_nl",
    "iq4_xs",
    "iq3_m",
    "iq3_s",
    "iq3_xs",
    "iq3_xxs",
    "iq2_m",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq1_m",
    "iq1_s",
    "tq2_0",
    "tq1_0",
)
"""The usual formats of served weights; `known_weight_format` accepts their systematic relatives as well."""

KV_FORMATS: tuple[str, ...] = (
    "auto",
    "fp32",
    "bf16",
    "fp16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "int8_per_token_head",
    "int4",
    "nvfp4",
    "mxfp8",
    "mxfp4",
    "q8_0",
    "q8",
    "q6",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0",
    "q4",
    "iq4_nl",
)

_GGUF_NAME = r"(i?q|tq|i)[1-8]_[0-9a-z]+(_[0-9a-z]+)*"
_WIDTH_NAME = r"(fp|int|uint|float)[1-9][0-9]?(_?e[0-9]m[0-9])?|w[1-9][0-9]?a[1-9][0-9]?(-[a-z0-9]+)?"
_SYSTEMATIC = f"{_GGUF_NAME}|{_WIDTH_NAME}"

FIGURES: tuple[str, ...] = (
    "peak.allocated",
    "peak.reserved",
    "peak.device",
    "peak.device.instant",
    "static.allocated",
    "weights",
    "kv.bytes_per_token",
    "kv.pool",
    "kv.tokens",
    "kv.blocks",
    "kv.block_size",
    "kv.concurrency",
    "kv.bytes",
    "kv.swa_bytes",
    "state.bytes",
    "activation_peak",
    "non_torch",
    "cuda_graphs",
    "compute_buffer",
    "file_bytes",
    "host.bytes",
)
"""Names of figures (contract, section 3)."""

GIVEN: tuple[str, ...] = (
    *FIGURES,
    "capacity",
    "budget",
    "free_before_load",
    "free_after_weights",
    "cuda_graphs_estimate",
    "bits_per_weight",
    "params",
)
"""What a job may state as known: figures and plain facts of a start-up log (contract, section 4)."""


def known_weight_format(name: str) -> bool:
    """Whether `name` is a weight format: a usual one, a GGUF type (`iq2_k_r4`), or a width (`fp6`, `w4a8`)."""
    return name in WEIGHT_FORMATS or re.fullmatch(_SYSTEMATIC, name) is not None

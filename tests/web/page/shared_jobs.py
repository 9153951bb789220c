"""Jobs that the tests of the page show, one for each kind of answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Job = dict[str, Any]
EXAMPLES = Path(__file__).parents[3] / "examples"

LORA: Job = {
    "name": "Llama-3.1-8B LoRA on one RTX 4090",
    "model": "meta-llama/Meta-Llama-3.1-8B",
    "hardware": {"gpu": "rtx-4090", "gpus": 1},
    "train": {
        "framework": "trl",
        "micro_batch": 1,
        "seq_len": 2048,
        "precision": "bf16-mixed",
        "dtypes": {"weights": "bf16"},
        "optimizer": {"name": "adamw", "impl": "fused"},
        "adapter": {"kind": "lora", "rank": 16, "targets": "all-linear"},
        "recompute": {"policy": "full"},
        "attention": "sdpa",
    },
}
"""The first example of the page."""
SMALL: Job = {
    "name": "small",
    "model": "Qwen/Qwen2.5-0.5B",
    "hardware": {"gpu": "l4", "gpus": 1},
    "train": {"framework": "trl", "micro_batch": 1, "seq_len": 512, "precision": "bf16"},
}
"""One whose searches are quick."""
VLLM: Job = {
    "name": "Llama-3.1-8B, vLLM on one L40S",
    "model": "meta-llama/Meta-Llama-3.1-8B",
    "hardware": {"gpu": "l40s", "gpus": 1},
    "serve": {"engine": "vllm", "context": 32768, "memory_fraction": 0.9},
}
GGUF: Job = {
    "name": "Qwen3-30B-A3B, llama.cpp on one RTX 4090",
    "model": "Qwen/Qwen3-30B-A3B",
    "hardware": {"gpu": "rtx-4090", "gpus": 1},
    "serve": {"engine": "llama.cpp", "weights": {"format": "q4_k_m"}, "context": 32768},
}
MEGATRON: Job = yaml.safe_load((EXAMPLES / "several-gpus" / "llama-3.1-405b-megatron.yaml").read_text(encoding="utf-8"))
"""Sixteen kinds of rank."""
TOO_LARGE: Job = {**LORA, "name": "too large", "train": {**LORA["train"], "micro_batch": 4}}
NO_CARD: Job = {key: value for key, value in SMALL.items() if key != "hardware"}
REFUSED: Job = {**SMALL, "name": "refused", "train": {**SMALL["train"], "precision": "fp12"}}
SEVERAL = {
    "model": "meta-llama/Meta-Llama-3.1-70B",
    "hardware": {"gpu": "h100-80gb", "gpus": 4},
    "serve": {"engine": "vllm", "context": 8192},
}
"""A server on several GPUs that does not say how it lies over them."""

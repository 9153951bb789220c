"""Answers one job with a model on the meta device. Runs in the environment of its peer: `hf_meta.py RULE CONFIG_DIR DTYPE train|infer`.

RULE `accelerate` is what `accelerate estimate-memory` computes (the command itself asks the hub for the model, this uses the same functions on a local config).
RULE `parameters` is the sum that people write down: weights, gradients and two moments in the dtype of the weights.
"""

from __future__ import annotations

import sys

from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModelForCausalLM

rule, folder, dtype, mode = sys.argv[1:]
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype="float32")
if rule == "accelerate":
    total, _ = calculate_maximum_sizes(model)
    long_name = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]
    size = max(estimate_training_usage(total, long_name).values()) if mode == "train" else total // (1 if dtype == "fp32" else 2)
else:
    width = 4 if dtype == "fp32" else 2
    size = sum(p.numel() for p in model.parameters()) * width * (4 if mode == "train" else 1)
print(int(size))

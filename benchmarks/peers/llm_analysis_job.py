"""Answers one job with llm-analysis. Runs in the environment of that peer.

`llm_analysis_job.py MODEL_JSON train|infer BATCH SEQ FULL_RECOMPUTE FLASH MASTER_BYTES`
"""

from __future__ import annotations

import json
import sys

from llm_analysis.analysis import infer, train
from llm_analysis.config import gpu_configs

GPU = "a100-sxm-80gb"
gpu_configs[GPU].mem_per_GPU_in_GB = 10_000  # it refuses what it thinks does not fit, and the question is how much
model, mode, batch, seq, recompute, flash, master = sys.argv[1:]
common = {"model_name": model, "gpu_name": GPU, "batch_size_per_gpu": int(batch), "seq_len": int(seq), "log_level": "ERROR"}
if mode == "train":
    answer = train(
        **common,
        activation_recomputation=2 if recompute == "1" else 0,
        flash_attn=flash == "1",
        master_weights_dtype_bytes=int(master),
        other_op_bytes=2 * int(master),  # two moments of the same type
        mlp_gated_linear_units=True,
        total_num_gpus=1,
        achieved_tflops=100,
    )
    size = answer["(weight+op_state+grad+act)_memory_per_gpu"]
else:
    answer = infer(**common, num_tokens_to_generate=1, achieved_tflops=100)
    size = answer["weight_memory_per_gpu"] + answer["kv_cache_memory_per_gpu"] + answer["prefill_activation_memory_per_gpu"]
print(json.dumps(int(size)))

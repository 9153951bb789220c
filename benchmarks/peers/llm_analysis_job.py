"""Answers one job with llm-analysis. Runs in the environment of that peer: `llm_analysis_job.py MODEL_JSON train|infer BATCH SEQ FULL_RECOMPUTE FLASH`."""

from __future__ import annotations

import json
import sys

from llm_analysis.analysis import infer, train

model, mode, batch, seq, recompute, flash = sys.argv[1:]
common = {"model_name": model, "gpu_name": "a100-sxm-80gb", "batch_size_per_gpu": int(batch), "seq_len": int(seq), "log_level": "ERROR"}
if mode == "train":
    answer = train(
        **common,
        activation_recomputation=2 if recompute == "1" else 0,
        flash_attn=flash == "1",
        mlp_gated_linear_units=True,
        total_num_gpus=1,
        achieved_tflops=100,
    )
    size = answer["(weight+op_state+grad+act)_memory_per_gpu"]
else:
    answer = infer(**common, num_tokens_to_generate=1, achieved_tflops=100)
    size = answer["weight_memory_per_gpu"] + answer["kv_cache_memory_per_gpu"] + answer["prefill_activation_memory_per_gpu"]
print(json.dumps(int(size)))

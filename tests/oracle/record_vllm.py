"""Records what vLLM itself makes of the caches of many architectures: run by `make oracle-vllm`, never by the test suite.

It builds each model on the meta device from its config.json, asks every layer for its KVCacheSpec, lets vLLM form the groups, and gives them POOL bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

POOL = 40 * 2**30
BLOCK = 16
MODELS = {
    "meta-llama/Meta-Llama-3.1-8B": 32768,
    "Qwen/Qwen3-14B": 32768,
    "mistralai/Mistral-7B-v0.1": 32768,
    "mistralai/Mixtral-8x7B-v0.1": 32768,
    "Qwen/Qwen3-30B-A3B": 32768,
    "google/gemma-7b": 8192,
    "google/gemma-2-9b": 8192,
    "google/gemma-3-1b-it": 32768,
    "openai/gpt-oss-20b": 65536,
    "microsoft/Phi-3-mini-4k-instruct": 4096,
    "facebook/opt-6.7b": 2048,
    "openai-community/gpt2": 1024,
    "tiiuae/falcon-7b": 2048,
    "deepseek-ai/DeepSeek-V2-Lite": 32768,
    "deepseek-ai/DeepSeek-V3": 65536,
    "zai-org/GLM-4.7-Flash": 65536,
    "zai-org/GLM-4.5-Air": 65536,
    "stabilityai/stablelm-2-zephyr-1_6b": 4096,
    "ai21labs/Jamba-v0.1": 65536,
    "nvidia/Nemotron-H-8B-Base-8K": 8192,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 65536,
    "state-spaces/mamba-130m-hf": 4096,
    "MiniMaxAI/MiniMax-M2.7": 65536,
}
"""Model of the catalogue -> max_model_len."""
WITH_STATES = ("Jamba", "Nemotron-H", "Qwen3-Next", "mamba")
"""Networks that are recorded without prefix caching as well: what they keep of their states depends on it."""


def one(folder: str, context: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Groups, blocks, tokens and concurrency of one model, as the engine forms them."""
    import torch  # everything here needs vLLM and its torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.core import kv_cache_utils as utils

    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(lambda *_: [MultipleOf(BLOCK)])  # as FlashAttention
    type(current_platform)._find_non_ssm_backends = classmethod(lambda *_: [CPUAttentionBackend])
    config = EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=context,
        block_size=BLOCK,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        language_model_only=True,
        **arguments,
    ).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            initialize_model(vllm_config=config)
        if config.model_config.is_hybrid:
            current_platform._align_hybrid_block_size(config, CPUAttentionBackend)
        config.cache_config.kv_cache_layout = "LBNHC"  # FlashAttention's: tokens before heads
        layers = config.compilation_config.static_forward_context
        asked = {name: layer.get_kv_cache_spec(config) for name, layer in layers.items() if hasattr(layer, "get_kv_cache_spec")}
        specs = {name: spec for name, spec in asked.items() if spec is not None}
        kinds = Counter((type(spec).__name__, spec.page_size_bytes) for spec in specs.values())
        groups = utils.get_kv_cache_groups(config, specs)
        planned = utils.get_kv_cache_config_from_groups(config, groups, POOL)
        tokens, concurrency = utils.get_kv_cache_capacity(config, planned)
    return {
        "layers": sorted([kind, page, count] for (kind, page), count in kinds.items()),
        "groups": len(groups),
        "block_size": config.cache_config.block_size,
        "blocks": planned.num_blocks,
        "tokens": tokens,
        "concurrency": concurrency,
        "in_flight": config.max_in_flight_tokens,
        "state_dtype": str(config.cache_config.mamba_ssm_cache_dtype),
        "state_mode": config.cache_config.mamba_cache_mode,
    }


def main(path: str) -> int:
    """One process a model: vLLM keeps global state. Nothing is written if one of them fails."""
    from everybyte.catalog.models import model_config

    found: list[dict[str, Any]] = []
    failed = 0
    for model, context in MODELS.items():
        for arguments in ({}, {"enable_prefix_caching": False}) if any(word in model for word in WITH_STATES) else ({},):
            with tempfile.TemporaryDirectory() as folder:
                config = model_config(model)
                config.pop("quantization_config", None)  # packed weights need kernels that a CPU has not, and change no cache
                Path(folder, "config.json").write_text(json.dumps(config))
                run = subprocess.run(
                    [os.environ.get("VLLM_PYTHON", sys.executable), __file__, folder, str(context), json.dumps(arguments)],
                    capture_output=True,
                    text=True,
                    check=False,
                    env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
                )
            if run.returncode:
                sys.stderr.write(f"{model} {arguments}: {run.stderr.strip().splitlines()[-1][:300]}\n")
                failed += 1
                continue
            found.append({"model": model, "context": context, "arguments": arguments, **json.loads(run.stdout.strip().splitlines()[-1])})
            sys.stderr.write(f"{model} {arguments}: {found[-1]['blocks']}\n")
    if failed:
        sys.stderr.write(f"{failed} failed: {path} stays as it was\n")
        return 1
    Path(path).write_text(json.dumps({"vllm": "0.32.0", "pool": POOL, "batched_tokens": 8192, "rows": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    else:
        print(json.dumps(one(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))))

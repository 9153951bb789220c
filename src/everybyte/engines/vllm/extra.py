"""Keys of `extra` that vLLM reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from everybyte.job.extra import Section
from everybyte.job.form import Bytes, CountOrZero


class Keys(Section, frozen=True, kw_only=True):
    """vLLM's own arguments. What a key means is told by vLLM's documentation; here stands what is read."""

    enable_lora: bool = False
    max_lora_rank: CountOrZero | None = None
    max_loras: CountOrZero | None = None
    dtype: str = "auto"
    task: str | None = None
    runner: str | None = None
    """What the network is used for: generate, or a task without generation."""
    attention_backend: str | None = None
    attention_backends: tuple[str, ...] | str | None = None
    language_model_only: bool = False
    limit_mm_per_prompt: dict[str, Any] | str | None = None
    """Items of a kind that a prompt may hold; of a kind with 0 there are none in the profiling run either. Also as JSON."""
    skip_mm_profiling: bool = False
    enforce_eager: bool = False
    decode_context_parallel_size: CountOrZero | None = None
    enable_expert_parallel: bool = False
    enable_prefix_caching: bool | None = None
    mamba_cache_mode: str = ""
    mamba_block_size: CountOrZero = 0
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    cpu_offload_gb: Annotated[float, msgspec.Meta(ge=0)] = 0
    kv_cache_memory_bytes: Bytes | None = None
    disable_hybrid_kv_cache_manager: bool = False
    VLLM_USE_V1: Literal[0, 1, "0", "1"] | bool | None = None
    VLLM_ATTENTION_BACKEND: str | None = None
    VLLM_PP_LAYER_PARTITION: str | None = None


SECTIONS = (Keys,)

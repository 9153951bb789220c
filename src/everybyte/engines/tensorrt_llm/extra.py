"""Keys of `extra` that TensorRT-LLM reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.job.form import Count, Share


class Keys(Section, frozen=True, kw_only=True):
    """TensorRT-LLM's own arguments. What a key means is told by TensorRT-LLM's documentation; here stands what is read."""

    enable_attention_dp: bool = False
    free_gpu_memory_fraction: Share | None = None
    kv_cache_free_gpu_mem_fraction: Share | None = None
    tokens_per_block: Count | None = None
    backend: str | None = None
    """`tensorrt` for an engine that was built; the PyTorch backend otherwise."""
    gather_context_logits: bool = False
    max_tokens: Count | None = None


SECTIONS = (Keys,)

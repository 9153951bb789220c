"""Keys of `extra` that SGLang reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.job.form import Count, Positive, Share


class Keys(Section, frozen=True, kw_only=True):
    """SGLang's own arguments. What a key means is told by SGLang's documentation; here stands what is read."""

    enable_dp_attention: bool = False
    enable_dp_lm_head: bool = False
    moe_dense_tp_size: Count | None = None
    moe_a2a_backend: str | None = None
    attention_backend: str | None = None
    page_size: Count | None = None
    max_running_requests: Count | None = None
    max_total_tokens: Count | None = None
    max_mamba_cache_size: Count | None = None
    mamba_full_memory_ratio: Positive | None = None
    mamba_ssm_dtype: str | None = None
    swa_full_tokens_ratio: Share | None = None
    disable_radix_cache: bool = False
    enable_lora: bool = False
    max_loras_per_batch: Count | None = None
    max_lora_rank: Count | None = None
    draft_layers: Count | None = None
    """Layers of the draft model, which are like the model's last; not an argument of SGLang's."""


SECTIONS = (Keys,)

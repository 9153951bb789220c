"""Keys of `extra` that Text Generation Inference reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.job.form import Count, Share


class Keys(Section, frozen=True, kw_only=True):
    """Text Generation Inference's own arguments. What a key means is told by Text Generation Inference's documentation; here stands what is read."""

    num_shard: Count | None = None
    max_total_tokens: Count | None = None
    max_batch_prefill_tokens: Count | None = None
    cuda_memory_fraction: Share | None = None
    prefix_caching: bool | None = None


SECTIONS = (Keys,)

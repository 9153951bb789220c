"""Keys of `extra` that LMDeploy reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.job.form import Count, Share


class Keys(Section, frozen=True, kw_only=True):
    """LMDeploy's own arguments. What a key means is told by LMDeploy's documentation; here stands what is read."""

    session_len: Count | None = None
    max_batch_size: Count | None = None
    cache_max_entry_count: Share | None = None
    cache_block_seq_len: Count | None = None
    max_prefill_token_num: Count | None = None
    backend: str = "turbomind"


SECTIONS = (Keys,)

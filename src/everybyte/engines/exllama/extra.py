"""Keys of `extra` that ExLlama reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.job.form import Count


class Keys(Section, frozen=True, kw_only=True):
    """ExLlama's own arguments. What a key means is told by ExLlama's documentation; here stands what is read."""

    cache_size: Count | None = None
    head_bits: Count | None = None


SECTIONS = (Keys,)

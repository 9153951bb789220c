"""Keys of `extra` that mlx reads."""

from __future__ import annotations

import msgspec

from everybyte.job.extra import Section
from everybyte.job.form import Count


class Keys(Section, frozen=True, kw_only=True):
    """mlx's own arguments. What a key means is told by mlx's documentation; here stands what is read."""

    kv_bits: Count | None = None
    kv_group_size: Count | None = None
    wired_limit_mb: Count | None = None
    system_limit_mb: Count | None = msgspec.field(default=None, name="iogpu.wired_limit_mb")
    """The same, as macOS calls it."""


SECTIONS = (Keys,)

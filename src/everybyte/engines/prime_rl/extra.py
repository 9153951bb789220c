"""Keys of `extra` that prime-rl reads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from everybyte.job.extra import Section
from everybyte.job.form import Count
from everybyte.rules.from_job.adapters import AdapterKeys
from everybyte.rules.from_job.recipe import RecipeKeys


class Keys(Section, frozen=True, kw_only=True):
    """prime-rl's own settings that are read."""

    type: Literal["sft", "rl"] = "sft"
    micro_batches: Count | None = None
    """Fake batches of its benchmark: no run arrives, and no optimizer is made."""
    max_concurrent_runs: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None


SECTIONS = (Keys, AdapterKeys, RecipeKeys)

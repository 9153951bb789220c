"""Keys of `extra` that torchtitan reads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everybyte.job.extra import Section
from everybyte.rules.parallel.schedules import ScheduleKeys
from everybyte.rules.parallel.stages import SplitKeys


class Keys(Section, frozen=True, kw_only=True):
    """torchtitan's own settings that are read."""

    selective: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | str = msgspec.field(default="op", name="activation_checkpoint.selective_ac_option")
    """`op`, or every how many blocks."""
    memory_budget: float | None = msgspec.field(default=None, name="activation_checkpoint.memory_budget")
    quantization: str = ""
    """`nvfp4 (layers 0-26)` names the blocks whose linear layers are NVFP4's."""


SECTIONS = (Keys, ScheduleKeys, SplitKeys)

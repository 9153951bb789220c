"""Keys of `extra` that llama.cpp reads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everybyte.job.extra import Section
from everybyte.job.form import Count
from everybyte.rules.quantization.gguf.size import FileKeys


class Keys(Section, frozen=True, kw_only=True):
    """llama.cpp's own arguments. What a key means is told by llama.cpp's documentation; here stands what is read."""

    mla: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    """ik_llama.cpp's -mla."""
    amb: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """ik_llama.cpp's -amb, MiB."""
    fmoe: bool = False
    n_outputs: Count | None = None
    """Rows of logits that are reserved."""
    override_tensor: tuple[str, ...] | str | None = None
    cpu_moe: bool = False
    n_cpu_moe: Count | None = None
    run_time_repack: bool = False
    split_mode: str = "layer"


SECTIONS = (Keys, FileKeys)

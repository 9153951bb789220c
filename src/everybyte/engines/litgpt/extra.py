"""Keys of `extra` that LitGPT reads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everybyte.job.extra import Section

Size = Annotated[int, msgspec.Meta(ge=0, le=2**20)]


class Keys(Section, frozen=True, kw_only=True):
    """LitGPT's own settings that are read."""

    chunk_size: Size = 128
    lm_head_chunk_size: Size = 128
    adapter_prompt_length: Size = 10
    adapter_start_layer: Size = 2
    lora_query: bool = True
    lora_key: bool = False
    lora_value: bool = True
    lora_projection: bool = False
    lora_mlp: bool = False
    lora_head: bool = False
    lora_dropout: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


SECTIONS = (Keys,)

"""Keys of `extra` that llama.cpp reads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from everybyte.job.extra import Section
from everybyte.job.form import Count, CountOrZero
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
    split_mode: Literal["none", "layer", "row", "tensor"] | None = None
    sm: Literal["none", "layer", "row", "tensor"] | None = None
    """The same."""
    main_gpu: CountOrZero | None = None
    mg: CountOrZero | None = None
    """The same."""
    no_kv_offload: bool = False
    nkvo: bool = False
    """The same."""
    kv_offload: bool = True

    @property
    def mode(self) -> str:
        """How the model lies over several GPUs."""
        return self.split_mode or self.sm or "layer"

    @property
    def keeps_cache_on_host(self) -> bool:
        """Whether the KV cache stays in host memory."""
        return self.no_kv_offload or self.nkvo or not self.kv_offload


SECTIONS = (Keys, FileKeys)

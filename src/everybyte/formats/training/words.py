"""Words that many training frameworks share: number formats, and which kernels are on."""

from __future__ import annotations

from typing import Any

from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Place
from everybyte.formats.table import value_tables


def dtype_word(value: Any) -> str | None:
    """`torch.bfloat16` -> `bf16`; None for `auto` and what is no format."""
    word = value_tables()["dtype"].get(str(value).strip().casefold())
    return None if word == "-" else word


def add_kernel(draft: JobDraft, name: str, place: Place) -> None:
    """Adds a package of fused kernels to the job's list."""
    known = draft.value("train.kernels") or []
    if name not in known:
        draft.state("train.kernels", [*known, name], place)

"""What a checkpoint holds: its configuration and the tensors it stores, by header alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_LONGEST_SHOWN = 100


class StoredTensor(NamedTuple):
    """One tensor of a checkpoint file."""

    name: str
    dtype: str
    """A name of `everybyte.basics.dtypes`, ggml block types among them."""
    shape: tuple[int, ...]
    """As PyTorch writes it, the fastest axis last."""
    nbytes: int
    """Bytes in the file, without padding."""


class Checkpoint(NamedTuple):
    """A model as it lies on disk or on the hub."""

    name: str
    config: dict[str, Any] | None
    """The fields of config.json; for GGUF the same fields derived from its metadata; None if there is no config."""
    tensors: tuple[StoredTensor, ...]
    """Empty where only a config was given."""
    metadata: Mapping[str, Any]
    """`files` read and `format` (config, safetensors or gguf), and what the files say of themselves."""


def shown(name: str) -> str:
    """A name out of a file, made safe to print: quoted, control characters escaped, cut after 100 characters."""
    return ascii(name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "...")

"""What a graph is built for: the largest batch, the caches, and where each weight is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from everybyte.allocator.ggml import Kind
from everybyte.catalog.releases import Release


class Placement(Protocol):
    """Devices of layers and tensors, and formats of weights."""

    @property
    def gpus(self) -> int:
        """How many GPUs; their number is that of host memory."""
        ...

    @property
    def whole(self) -> bool:
        """Every layer and the output are on GPUs."""
        ...

    def layer(self, index: int) -> int:
        """The device of a layer; index = number of layers: the output."""
        ...

    def tensor(self, name: str, index: int) -> int:
        """The device of a layer's tensor (`ffn_up_exps`), which may be overridden."""
        ...

    def kind(self, name: str, index: int) -> Kind:
        """The format of a weight matrix."""
        ...

    def stays(self, name: str, index: int) -> bool:
        """Whether a weight in host memory has a format that no GPU computes with."""
        ...


class Prompt(NamedTuple):
    """The worst-case prompt of a context."""

    release: Release
    tokens: int
    """Of the batch: a multiple of the sequences."""
    sequences: int
    outputs: int
    """Rows of logits."""
    cells: int
    """Of the main cache, a stream."""
    window_cells: int
    """Of the windows' cache, a stream; 0: windows are masked in the main cache."""
    streams: int
    """Parts of the cache that sequences have for themselves: 1 where it is unified."""
    slots: int
    """Recurrent states."""
    flash: bool
    key: Kind
    value: Kind
    latent: int = 0
    """How the fork computes MLA: 0 all keys and values, 1 absorbed, 2 and 3 expanded for prompts."""
    most_scores: int = 0
    """MiB that its scores, or its expanded keys and values, may take at once; 0: any."""
    widest_values: int = 0
    """Numbers of the widest row of values in the network."""
    joins_experts: bool = False
    """The fork's fused gate and up product of experts (-fmoe)."""

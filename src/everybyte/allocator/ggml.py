"""Tensors and graphs as ggml has them: shapes, strides and order alone, no numbers.

Sources: llama.cpp ggml/src/ggml.c (ggml_nbytes, ggml_build_forward_impl), ggml/src/ggml-common.h (block types), ik_llama.cpp ggml/src/iqk (row scales).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from everybyte.rules.quantization.gguf.types import block_of

Shape = tuple[int, int, int, int]
INPUT, OUTPUT = 1, 2
"""Flags of a tensor (ggml.h GGML_TENSOR_FLAG_*)."""
UNPLACED = -1
VIEWS = frozenset(("view", "reshape", "permute", "transpose", "none"))
"""Operations that compute nothing (ggml_is_view_op)."""


class Kind(NamedTuple):
    """A number format: `block` numbers take `size` bytes; `row` bytes stand in front of each row (ik_llama.cpp's row scales)."""

    name: str
    block: int
    size: int
    row: int = 0

    def row_bytes(self, numbers: int) -> int:
        """Bytes of a row (ggml_row_size)."""
        return self.size * (numbers // self.block) + self.row


_RENAMED = {"i32": "int32", "i64": "int64"}


@lru_cache(maxsize=256)
def kind(name: str) -> Kind:
    """The format called `name` in ggml's spelling (`f16`, `q8_0`, `iq4_ks`). Raises KeyError for an unknown one."""
    return Kind(name, *block_of(_RENAMED.get(name, name)))


F32, F16, I32, I64 = kind("f32"), kind("f16"), kind("i32"), kind("i64")


class Tensor:
    """A tensor of a graph. `outside`: it lives in a buffer of its own (weights, caches) on `device`; a `view` has no memory either.

    What stands here in the class is so for most tensors. A graph is scheduled and planned once: `place` and what follows is what is then known of a tensor.
    """

    device: int | None = None
    outside = False
    is_weight = False
    stays = False
    """A weight in host memory in a format that no GPU computes with."""
    extra = 0
    """Bytes that the device asks for behind the tensor's own (a flash attention's converted cache)."""
    seen = False
    place = UNPLACED
    """The device that computes it, as the scheduler says."""
    children = 0
    """Readers that are still to come."""
    views = 0
    """Views that are still read."""
    is_held = False
    """It has memory: at `offset` of the buffer of `home`."""
    offset = 0
    home = 0

    def __init__(
        self,
        kind: Kind,
        ne: Sequence[int],
        op: str = "none",
        sources: Sequence[Tensor] = (),
        *,
        view: Tensor | None = None,
        nb: Shape | None = None,
        flags: int = 0,
    ) -> None:
        self.kind = kind
        self.ne: Shape = ne if len(ne) == 4 else (*ne, *(1,) * (4 - len(ne)))  # type: ignore[assignment]
        self.nb: Shape = nb or contiguous(kind, self.ne)
        self.op = op
        self.sources = list(sources)
        self.view: Tensor | None = (view.view or view) if view is not None else None
        self.flags = flags

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last number (ggml_nbytes)."""
        (n0, n1, n2, n3), (b0, b1, b2, b3) = self.ne, self.nb
        first = n0 * b0 if self.kind.block == 1 else self.kind.row_bytes(n0)
        return first + (n1 - 1) * b1 + (n2 - 1) * b2 + (n3 - 1) * b3


def contiguous(kind: Kind, ne: Shape) -> Shape:
    """Strides of a tensor without gaps."""
    row = kind.row_bytes(ne[0])
    return kind.size, row, row * ne[1], row * ne[1] * ne[2]


class Graph:
    """Nodes and leafs in the order in which ggml visits them: sources first."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []

    def expand(self, tensor: Tensor) -> Tensor:
        """Adds a tensor with everything that it is made of (ggml_build_forward_expand)."""
        if tensor.seen:
            return tensor
        tensor.seen = True
        stack = [(tensor, iter(tensor.sources))]
        while stack:
            at, rest = stack[-1]
            for source in rest:
                if not source.seen:
                    source.seen = True
                    stack.append((source, iter(source.sources)))
                    break
            else:
                stack.pop()
                (self.leafs if at.op == "none" else self.nodes).append(at)
        return tensor

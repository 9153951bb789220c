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
    """A tensor of a graph. `outside`: it lives in a buffer of its own (weights, caches) on `device`; a `view` has no memory either."""

    __slots__ = ("device", "extra", "flags", "is_weight", "kind", "nb", "ne", "op", "outside", "seen", "sources", "stays", "view")

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
        self.ne: Shape = (*ne, *(1,) * (4 - len(ne)))  # type: ignore[assignment]
        self.nb: Shape = nb or contiguous(kind, self.ne)
        self.op = op
        self.sources = list(sources)
        self.view: Tensor | None = (view.view or view) if view is not None else None
        self.flags = flags
        self.device: int | None = None
        self.outside = False
        self.is_weight = False
        self.stays = False
        """A weight in host memory in a format that no GPU computes with."""
        self.extra = 0
        """Bytes that the device asks for behind the tensor's own (a flash attention's converted cache)."""
        self.seen = False

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last number (ggml_nbytes)."""
        first = self.nb[0] if self.kind.block == 1 else self.kind.row_bytes(self.ne[0])
        if self.kind.block == 1:
            first += (self.ne[0] - 1) * self.nb[0]
        return first + sum((n - 1) * step for n, step in zip(self.ne[1:], self.nb[1:], strict=True))

    @property
    def is_view_op(self) -> bool:
        """Operations that compute nothing (ggml_is_view_op)."""
        return self.op in ("view", "reshape", "permute", "transpose", "none")


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
        stack = [(tensor, 0)]
        while stack:
            at, index = stack.pop()
            if index == 0:
                if at.seen:
                    continue
                at.seen = True
            if index < len(at.sources):
                stack.append((at, index + 1))
                stack.append((at.sources[index], 0))
            elif at.op == "none":
                self.leafs.append(at)
            else:
                self.nodes.append(at)
        return tensor

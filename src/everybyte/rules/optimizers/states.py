"""State that optimizers keep for one trained tensor: the bytes of each state tensor, from the shape and the type of the parameter, and the
same as a formula: P numbers of e bytes, the last two dimensions m and n, `lead` of the others, rank r."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from everybyte.basics.dtypes import FP32, DType
from everybyte.basics.units import ceil_div

Shape = tuple[int, ...]

SMALL = 4096
"""Tensors with fewer elements are not quantised (bitsandbytes min_8bit_size, torchao _new_buffer)."""


class State(NamedTuple):
    """Bytes of each state tensor, and the formula of their sum."""

    tensors: Callable[[Shape, DType], tuple[int, ...]]
    text: Callable[[Shape], str]


def moments(count: int) -> State:
    """`count` tensors like the parameter, in its type."""
    text = "P·e" if count == 1 else f"{count}·P·e"
    return State(lambda shape, dtype: (dtype.nbytes(prod(shape)),) * count, lambda _: text if count else "0")


def wide_moments(*widths: int) -> State:
    """Tensors with as many numbers as the parameter, of so many bytes each whatever its type."""
    return State(lambda shape, _: tuple(width * prod(shape) for width in widths), lambda _: f"{sum(widths)}·P")


def factored(*, wide: bool = False) -> State:
    """One statistic a row and one a column of the last two dimensions; a whole second moment for vectors. `wide`: in fp32 whatever the
    parameter's type, and the root mean square of the parameter beside them."""
    each = "4" if wide else "e"

    def tensors(shape: Shape, dtype: DType) -> tuple[int, ...]:
        kind = FP32 if wide else dtype
        extra = (4,) if wide else ()
        if len(shape) < 2:
            return (kind.nbytes(prod(shape)), *extra)
        lead = prod(shape[:-2])
        return kind.nbytes(lead * shape[-2]), kind.nbytes(lead * shape[-1]), *extra

    def text(shape: Shape) -> str:
        return (f"{each}·lead·(m + n)" if len(shape) > 1 else f"{each}·P") + (" + 4" if wide else "")

    return State(tensors, text)


def confident() -> State:
    """CAME: the first moment, rows and columns of the second moment and of its residual, and the root mean square of the parameter."""

    def tensors(shape: Shape, dtype: DType) -> tuple[int, ...]:
        whole = dtype.nbytes(prod(shape))
        if len(shape) < 2:
            return whole, whole, 4
        lead = prod(shape[:-2])
        sides = (dtype.nbytes(lead * shape[-2]), dtype.nbytes(lead * shape[-1]))
        return whole, *sides, *sides, 4

    return State(tensors, lambda shape: "P·e + 2·e·lead·(m + n) + 4" if len(shape) > 1 else "2·P·e + 4")


def cover() -> State:
    """SM3: one statistic an index of each dimension."""
    return State(lambda shape, dtype: tuple(dtype.nbytes(size) for size in shape), lambda _: "e·dims")


def blockwise(*widths: int) -> State:
    """bitsandbytes 8-bit states: for each tensor, so many moments of one byte a number with an fp32 maximum for 256."""
    total = sum(widths)

    def tensors(shape: Shape, _: DType) -> tuple[int, ...]:
        numbers = prod(shape)
        if numbers < SMALL:
            return tuple(4 * width * numbers for width in widths)
        return tuple(size for width in widths for size in (width * numbers, 4 * width * ceil_div(numbers, 256)))

    return State(tensors, lambda shape: f"{4 * total}·P" if prod(shape) < SMALL else f"{total}·P + {4 * total}·ceil(P/256)")


def torchao(bits: int, block: int, table: int) -> State:
    """Two moments of `bits` with an fp32 scale a block and a table of `table` numbers, or of the parameter's type where a tensor is small or
    does not fill whole blocks."""

    def plain(shape: Shape) -> bool:
        return prod(shape) < SMALL or prod(shape) % block != 0

    def tensors(shape: Shape, dtype: DType) -> tuple[int, ...]:
        numbers = prod(shape)
        if plain(shape):
            return (dtype.nbytes(numbers),) * 2
        one = (numbers * bits // 8, 4 * numbers // block)
        return (*one, 4 * table) * 2 if table else one * 2

    packed = "2·P" if bits == 8 else f"2·P·{bits}/8"
    return State(tensors, lambda shape: "2·P·e" if plain(shape) else f"{packed} + 8·P/{block} + {8 * table}")


def projected(rank: int, moment: State, *, keep_projector: bool) -> State:
    """GaLore and APOLLO: moments of the gradient projected to rank r on the shorter side: r·long each, and for GaLore the short·r projector."""

    def whole(shape: Shape) -> bool:
        return len(shape) != 2 or min(shape) <= rank

    def tensors(shape: Shape, dtype: DType) -> tuple[int, ...]:
        if whole(shape):
            return moment.tensors(shape, dtype)
        short, long = sorted(shape)
        projector = (dtype.nbytes(short * rank),) if keep_projector else ()
        return *moment.tensors((rank, long), dtype), *projector

    def text(shape: Shape) -> str:
        if whole(shape):
            return moment.text(shape)
        short, long = ("m", "n") if shape[0] <= shape[1] else ("n", "m")
        inner = moment.text((rank, max(shape))).replace("P", f"(r·{long})").replace("(m + n)", f"(r + {long})").replace("lead·", "")
        return inner + (f" + e·{short}·r" if keep_projector else "")

    return State(tensors, text)


def muon() -> State:
    """One momentum for matrices, AdamW's two moments for the rest."""

    def count(shape: Shape) -> int:
        return 1 if len(shape) == 2 else 2

    return State(lambda shape, dtype: (dtype.nbytes(prod(shape)),) * count(shape), lambda shape: "P·e" if count(shape) == 1 else "2·P·e")


def preconditioned(squares: int, moment_count: int) -> State:
    """Shampoo and SOAP: `squares` square matrices of each side of a matrix, beside `moment_count` moments."""
    own = moments(moment_count)

    def tensors(shape: Shape, dtype: DType) -> tuple[int, ...]:
        sides = shape[-2:] if len(shape) > 1 else ()
        return *own.tensors(shape, dtype), *(dtype.nbytes(side * side) for side in sides for _ in range(squares))

    def text(shape: Shape) -> str:
        matrices = f"{squares}·e·(m·m + n·n)"
        if len(shape) < 2:
            return own.text(shape)
        return matrices if not moment_count else f"{own.text(shape)} + {matrices}"

    return State(tensors, text)


def mini() -> State:
    """Adam-mini: the first moment, and one second moment a row of a matrix (a neuron) or for a whole vector."""

    def tensors(shape: Shape, dtype: DType) -> tuple[int, ...]:
        return dtype.nbytes(prod(shape)), dtype.nbytes(shape[-2] if len(shape) > 1 else 1)

    return State(tensors, lambda shape: "P·e + m·e" if len(shape) > 1 else "P·e + e")

"""Sizes that depend on the batch: sums of products of batch axes with whole coefficients.

A tensor of n tokens and width f takes `2·n·f` bytes whatever n is. Keeping sizes in that form lets a layer be described once and
priced for any batch, and lets `explain` print the formula that gave the number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everybyte.basics.dtypes import DType
from everybyte.basics.units import ceil_div


class Axis(NamedTuple):
    """A count that only the batch knows. `letter` is how formulas write it."""

    letter: str
    cap: int = 0
    """At most this many (a sliding window), 0 for no limit."""
    share: tuple[int, int] = (1, 1)
    """(numerator, denominator) of the count, rounded up: of the tokens for the balanced share of one expert (`r`), of a sequence's
    tokens for a map at a lower or higher resolution (`s`)."""
    worst: tuple[int, int] = (0, 1)
    """The same of tokens that come to the experts of one rank (`R`) where routing is as uneven as it can be, up to a multiple of `cap`."""


B = Axis("b")
"""Sequences of the micro-batch."""
S = Axis("s")
"""Tokens of a sequence that go through the network in this pass."""
T = Axis("t")
"""Keys that a query can see: equal to s in training, the cache length in decoding."""
M = Axis("m")
"""Encoder positions of a sequence that cross-attention reads."""
U = Axis("u")
"""u = s - 1: positions of a sequence that have a next token."""
J = Axis("j")
"""j = s + m: tokens of two streams that attend together (images and text in a diffusion transformer)."""


class Batch(NamedTuple):
    """The values of the axes: b sequences of s tokens, t keys each, m encoder positions each."""

    b: int
    s: int
    t: int
    m: int = 0
    is_uneven: bool = False
    """All tokens choose experts of this rank; else every expert gets equally many."""

    def value(self, axis: Axis) -> int:
        """The count of an axis."""
        if axis.letter == "c":
            return flce_rows(self.b * self.s, *axis.share)
        if axis.letter == "r":
            return ceil_div(self.b * self.s * axis.share[0], axis.share[1])
        if axis.letter == "R":
            (part, whole), multiple = (axis.worst, axis.cap or 1) if self.is_uneven else (axis.share, 1)
            return ceil_div(self.b * self.s * part, whole * multiple) * multiple
        if axis.letter == "l":
            return min(self.b * min(ceil_div(self.s * axis.share[0], axis.share[1]), max(self.s - axis.cap, 0)), TILE)
        if axis.letter == "e":
            return (self.s - 1) // axis.cap * axis.cap
        plain = {"b": self.b, "s": self.s, "t": self.t, "m": self.m, "j": self.s + self.m, "u": max(self.s - 1, 0)}[axis.letter[0]]
        if axis.share != (1, 1):
            plain = ceil_div(plain * axis.share[0], axis.share[1])
        return min(plain, axis.cap) if axis.cap else plain


class Point(dict[tuple[Axis, ...], int]):
    """Values of axis products for one batch, worked out when first asked for."""

    def __init__(self, batch: Batch) -> None:
        super().__init__({(): 1})
        self.batch = batch

    def __missing__(self, axes: tuple[Axis, ...]) -> int:
        value = 1
        for axis in axes:
            value *= self.batch.value(axis)
        self[axes] = value
        return value


def flce_rows(tokens: int, vocab: int, hidden: int) -> int:
    """Rows of a chunk of Liger's fused linear cross entropy (ops/fused_linear_cross_entropy.py): n over ceil(V/h), up to a power of two."""
    rows = ceil_div(tokens, ceil_div(vocab, hidden))
    return 1 << (rows - 1).bit_length()


class Dim(NamedTuple):
    """One dimension of a shape: a fixed size with its letter, or batch axes times a fixed size."""

    letter: str
    size: int = 1
    axes: tuple[Axis, ...] = ()


Dims = tuple[Dim, ...]
Monomial = tuple[Axis, ...]

TOKENS = Dim("n", 1, (B, S))
"""n = b·s tokens of the micro-batch."""
SEQUENCES, QUERIES, KEYS, MEMORY = Dim("b", 1, (B,)), Dim("s", 1, (S,)), Dim("t", 1, (T,)), Dim("m", 1, (M,))
KEY_TOKENS = Dim("t", 1, (B, T))
MEMORY_TOKENS = Dim("m", 1, (B, M))
SHIFTED_TOKENS = Dim("(n-b)", 1, (B, U))
"""n - b: tokens that have a next one."""
JOINT_TOKENS = Dim("j", 1, (B, J))


def routed(top_k: int) -> Dim:
    """N = n·top_k: tokens after routing, each counted once an expert."""
    return Dim("N", top_k, (B, S))


def arriving(top_k: int, ranks: int, held: int) -> Dim:
    """Tokens after routing that come from so many ranks to one that holds `held` experts: as many as it sends, if all experts get equally many; at
    most min(top_k, held) copies of every token."""
    return Dim("N", 1, (Axis("R", 0, (top_k, 1), (ranks * min(top_k, held), 1)),))


def expert_share(top_k: int, experts: int) -> Dim:
    """Tokens of one expert when routing is balanced: ceil(n·top_k/E)."""
    return Dim("r", 1, (Axis("r", 0, (top_k, experts)),))


def chunk_tokens(chunks: int) -> Dim:
    """Tokens of one of `chunks` parts of every sequence: b·ceil(s/chunks)."""
    return Dim(f"n/{chunks}", 1, (B, Axis("s", 0, (1, chunks))))


def piece_of(tokens: int) -> Dim:
    """Tokens of one of the pieces into which every sequence is cut, at most `tokens` long each."""
    return Dim("c", 1, (B, Axis("s", tokens)))


def pieces_before_last(tokens: int) -> Dim:
    """Tokens of all those pieces but the last."""
    return Dim("e", 1, (B, Axis("e", tokens)))


def flce_chunk(vocab: int, hidden: int) -> Dim:
    """c: rows of a chunk of the fused linear cross entropy."""
    return Dim("c", 1, (Axis("c", 0, (vocab, hidden)),))


TILE = 4096
"""Tokens of a tile of trl's fused head (kernels/chunked_logprob.py TOKEN_CHUNK_SIZE)."""


def tile_tokens(scored: Axis) -> Dim:
    """Tokens of such a tile: all scored ones, at most 4,096. `scored`: a share of every sequence, or all but its last position."""
    return Dim("l", 1, (Axis("l", 1 if scored == U else 0, scored.share),))


def elements(dims: Dims) -> tuple[int, Monomial]:
    """(coefficient, axes) of the number of elements."""
    count = 1
    axes: list[Axis] = []
    for dim in dims:
        count *= dim.size
        axes.extend(dim.axes)
    return count, tuple(sorted(axes))


class Size:
    """Bytes as a sum over monomials of batch axes. Immutable by convention."""

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Monomial, int] | None = None) -> None:
        self.terms: dict[Monomial, int] = terms or {}

    @classmethod
    def of(cls, dims: Dims, dtype: DType) -> Size:
        """Bytes of a tensor. Plain number formats only: packed formats are counted by their own rules."""
        count, axes = elements(dims)
        return cls({axes: dtype.nbytes(count)})

    @classmethod
    def const(cls, nbytes: int) -> Size:
        """Bytes that do not depend on the batch."""
        return cls({(): nbytes}) if nbytes else cls()

    @classmethod
    def total(cls, sizes: Iterable[Size]) -> Size:
        """The sum of sizes."""
        terms: dict[Monomial, int] = {}
        for size in sizes:
            for axes, count in size.terms.items():
                terms[axes] = terms.get(axes, 0) + count
        return cls(terms)

    def __add__(self, other: Size) -> Size:
        return Size.total((self, other))

    def __mul__(self, factor: int) -> Size:
        return Size({axes: count * factor for axes, count in self.terms.items()})

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __bool__(self) -> bool:
        return any(self.terms.values())

    def __repr__(self) -> str:
        return " + ".join(f"{count}" + "".join("·" + a.letter for a in axes) for axes, count in self.terms.items()) or "0"

    def covers(self, other: Size) -> bool:
        """Whether this is at least `other` for every batch."""
        mine, theirs = self.terms, other.terms
        for axes, count in theirs.items():
            if mine.get(axes, 0) < count:
                return False
        return all(count >= 0 or axes in theirs for axes, count in mine.items())

    def at(self, point: Point) -> int:
        """Bytes for a batch."""
        total = 0
        for axes, count in self.terms.items():
            total += count * point[axes]
        return total


ZERO = Size()

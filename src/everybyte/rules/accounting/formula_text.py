"""Formulas of rows, written from the shapes of the tensors behind them. Put into the formula, the symbols of a row give its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from everybyte.basics.arithmetic import arithmetic
from everybyte.layers.recording.size import ZERO, Axis, Batch, Dim, Dims, Size, elements
from everybyte.layers.recording.tape import Storage
from everybyte.ledger.build import Text

Known = tuple[tuple[str, int], ...]
"""Letters with their sizes."""

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COUNT_BEFORE_LETTER = re.compile(r"(?<!\w)(\d+)(?=[A-Za-z_(])", re.ASCII)
_SQUARE = re.compile(r"(\w+)²", re.ASCII)


class Letters:
    """Writes shapes in letters and collects the value of each. A letter has one value in a formula: another size gets an index (`C_2`)."""

    def __init__(self, known: Iterable[tuple[str, int]] = (), batch: Batch | None = None) -> None:
        self.symbols: dict[str, int] = {}
        self.batch = batch
        self._axes = {} if batch is None else {"n": batch.b * batch.s, "b": batch.b, "s": batch.s, "t": batch.t, "m": batch.m, "j": batch.s + batch.m}
        self._known = {**dict(known), **self._axes}

    def product(self, dims: Dims) -> str:
        """`n·f`: a shape. `1` for a single number. Fixed sizes come in the order of the alphabet, so that a matrix and its transpose are the same."""
        if not any(dim.axes for dim in dims):
            dims = tuple(sorted(dims))
        return "·".join(word for word in map(self.dim, dims) if word != "1") or "1"

    def dim(self, dim: Dim) -> str:
        """One dimension: its letter, its composition out of other letters where their sizes are known, else its number."""
        value = elements((dim,))[0]
        for axis in dim.axes:
            value *= self._value(axis)
        word = dim.letter.replace("'", "_p")
        if dim.axes and dim.letter == "N":
            if dim.axes[0].letter == "R":  # so many copies of each token, from all ranks that divide one expert
                copies = dim.axes[0].share[0] * dim.size
                return f"{self.named('n', value // copies)}·{self.named('top_k', copies)}"
            return f"{self.named('n', value // dim.size)}·{self.named('top_k', dim.size)}"
        if dim.axes and self._axes.get(word, value) != value:
            return self.monomial(dim.axes, dim.size)
        return self.named(word, value) if _WORD.fullmatch(word) else self._composed(word, value)

    def named(self, word: str, value: int) -> str:
        """A letter for a value: the word itself, or the word with an index where it already means another one."""
        name, index = word, 2
        while self.symbols.setdefault(name, value) != value:
            name, index = f"{word}_{index}", index + 1
        return name

    def monomial(self, axes: tuple[Axis, ...], factor: int = 1) -> str:
        """`4·b·s`: a number times axes of the batch."""
        words = [word for word in map(self._axis, axes) if word != "1"]
        return "·".join([str(factor), *words] if factor != 1 or not words else words)

    def _axis(self, axis: Axis) -> str:
        value = self._value(axis)
        if axis.share == (1, 1):
            return self.named("w" if axis.cap and value == axis.cap else axis.letter, value)
        whole = self._axes.get(axis.letter, 0)
        if axis.share[0] == 1 and whole == value * axis.share[1]:
            return f"{self.named(axis.letter, whole)}/{axis.share[1]}"
        return self.named(axis.letter, value)

    def _value(self, axis: Axis) -> int:
        assert self.batch is not None, "a shape of the batch is written for a batch"
        return self.batch.value(axis)

    def _composed(self, word: str, value: int) -> str:
        """`2f` -> `2·f`, `(A+2K)` -> `(A+2·K)`, if the letters are known and give the value."""
        text = _SQUARE.sub(r"\1·\1", _COUNT_BEFORE_LETTER.sub(r"\1·", word))
        values = {letter: self.symbols.get(letter, self._known.get(letter, 0)) for letter in _WORD.findall(text)}
        try:
            if not values or 0 in values.values() or arithmetic(text, values) != value:
                return str(value)
        except ValueError:
            return str(value)
        self.symbols.update(values)
        return text if text.startswith("(") or not set("+-") & set(text) else f"({text})"


def add_up(terms: Mapping[str, int]) -> str:
    """`6·n·f + 2·n·h - 40`: how often each product of letters counts; the key `1` is a plain number."""
    words = []
    for key, count in sorted(terms.items(), key=lambda term: term[1] < 0):
        if count:
            words.append("-" if count < 0 else "+")
            words.append(str(abs(count)) if key == "1" else (key if abs(count) == 1 else f"{abs(count)}·{key}"))
    return " ".join(words).removeprefix("+ ") or "0"


def times(factor: int | str, body: str) -> str:
    """`31·(6·n·f + 2·n·h)`."""
    if str(factor) == "1":
        return body
    return f"{factor}·({body})" if is_sum(body) else f"{factor}·{body}"


def is_sum(body: str) -> bool:
    """Whether a formula adds up outside all brackets."""
    depth = 0
    for char in body:
        depth += (char == "(") - (char == ")")
        if char in "+-" and not depth:
            return True
    return False


def with_rounding(body: str, rounding: int, symbols: dict[str, int]) -> Text:
    """The formula with what the allocator rounds up as a term of its own."""
    if not rounding:
        return Text(body, symbols)
    return Text(f"{body} + rounding", {**symbols, "rounding": rounding})


class Kind(NamedTuple):
    """Tensors of one shape and type, or workspaces of one size, which have no shape."""

    copies: int
    dims: Dims
    bytes_each: int
    """Of an element."""
    size: Size
    """Of a workspace."""


@lru_cache(maxsize=16384)
def storages_text(storages: tuple[Storage, ...], copies: int, batch: Batch, known: Known = ()) -> Text:
    """`31·(6·n·f + 2·n·h)`: `copies` of a group of tensors."""
    letters = Letters(known, batch)
    terms: dict[str, int] = {}
    for kind in _kinds(storages):
        for key, count in _terms(kind, letters):
            terms[key] = terms.get(key, 0) + kind.copies * count
    return Text(times(copies, add_up(terms)), letters.symbols)


@lru_cache(maxsize=16384)
def _kinds(storages: tuple[Storage, ...]) -> tuple[Kind, ...]:
    """The kinds of a group of tensors, in the order in which they come first: the same for every batch."""
    found: dict[tuple[object, ...], Kind] = {}
    for storage in storages:
        has_shape = bool(storage.dims) and Size.of(storage.dims, storage.dtype).terms == storage.size.terms
        dims, each, size = (storage.dims, storage.dtype.block_bytes, ZERO) if has_shape else ((), 0, storage.size)
        key = (dims, each, *size.terms.items())
        before = found.get(key)
        found[key] = Kind(1 + (before.copies if before else 0), dims, each, size)
    return tuple(found.values())


def _terms(kind: Kind, letters: Letters) -> list[tuple[str, int]]:
    """(product of letters, bytes of each) of a tensor; a workspace has no shape: its bytes in the axes of the batch."""
    if kind.dims:
        return [(letters.product(kind.dims), kind.bytes_each)]
    return [(letters.monomial(axes), count) for axes, count in kind.size.terms.items()]


def group(storages: Iterable[Storage]) -> dict[str, tuple[Storage, ...]]:
    """Storages by the module that made them: the first part of their place."""
    found: dict[str, list[Storage]] = {}
    for storage in storages:
        found.setdefault(storage.place.split(".", 1)[0] or "block", []).append(storage)
    return {module: tuple(members) for module, members in found.items()}

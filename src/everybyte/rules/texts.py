"""Formulas of rows, written from the shapes of the tensors behind them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from everybyte.layers.size import Batch, Dims
from everybyte.layers.tape import Storage
from everybyte.ledger.build import Text

BATCH_LETTERS = {"n": lambda b: b.b * b.s, "b": lambda b: b.b, "s": lambda b: b.s, "t": lambda b: b.t, "m": lambda b: b.m}


def product(dims: Dims) -> str:
    """`n·f`: the letters of a shape in the order of the field."""
    return "·".join(d.letter for d in dims) or "1"


@lru_cache(maxsize=4096)
def sum_text(storages: tuple[Storage, ...], copies: int) -> tuple[str, tuple[tuple[str, int], ...]]:
    """`31·(6·n·f + 2·n·h)` and the sizes of its fixed letters."""
    terms: dict[str, int] = {}
    letters: dict[str, int] = {}
    for storage in storages:
        if not storage.dims:
            key, count = _raw(storage)
        else:
            key, count = product(storage.dims), storage.dtype.block_bytes
        if count:
            terms[key] = terms.get(key, 0) + count
        letters.update({d.letter: d.size for d in storage.dims if not d.axes})
        letters.update({"top_k": d.size for d in storage.dims if d.letter == "N"})
    body = " + ".join(f"{count}·{key}" if key != "1" else str(count) for key, count in terms.items())
    if copies == 1:
        return body, tuple(letters.items())
    return (f"{copies}·({body})" if len(terms) > 1 else f"{copies}·{body}"), tuple(letters.items())


def _raw(storage: Storage) -> tuple[str, int]:
    """A workspace has no shape: its bytes in the axes of the batch."""
    parts = ["·".join([str(count), *(a.letter for a in axes)]) for axes, count in storage.size.terms.items() if count]
    if len(parts) == 1 and parts[0].isdigit():
        return "1", int(parts[0])
    return f"({' + '.join(parts)})", 1


def storages_text(storages: tuple[Storage, ...], copies: int, batch: Batch) -> Text:
    """The formula of a group of tensors, with the batch put into its symbols."""
    formula, letters = sum_text(storages, copies)
    symbols = {letter: read(batch) for letter, read in BATCH_LETTERS.items() if letter in formula}
    return Text(formula, {**symbols, **{k: v for k, v in letters if k not in symbols}})


def group(storages: Iterable[Storage]) -> dict[str, tuple[Storage, ...]]:
    """Storages by the module that made them: the first part of their place."""
    found: dict[str, list[Storage]] = {}
    for storage in storages:
        found.setdefault(storage.place.split(".", 1)[0] or "block", []).append(storage)
    return {module: tuple(members) for module, members in found.items()}

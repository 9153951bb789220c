"""The rows of a grid as one table: CSV, or Parquet by pyarrow."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from os.path import splitext
from typing import Any

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.grid.rows import Row

ENDINGS = (".csv", ".parquet")


def check_table(path: str) -> None:
    """Raises BadInput for a file that no table can be written to, before anything is worked out; MissingExtra for Parquet without pyarrow."""
    ending = splitext(path)[1].casefold()
    if ending not in ENDINGS:
        raise BadInput("--to", f"{path!r} ends neither in .csv nor in .parquet")
    if ending == ".parquet":
        _pyarrow()
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise BadInput("--to", f"there is no folder {folder}")


def write_table(rows: Sequence[Row], path: str) -> None:
    """Writes the table in place of an older one, at once. A column is whole numbers, fractions, switches or text; what a row lacks stays empty."""
    columns = columns_of(rows)
    partial = f"{path}.part"
    if splitext(path)[1].casefold() == ".csv":
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval=None, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    else:
        pa, parquet = _pyarrow()
        arrays = {name: pa.array(_alike([row.get(name) for row in rows])) for name in columns}
        parquet.write_table(pa.table(arrays), partial)
    os.replace(partial, path)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All columns in the order in which they come up, the reason and what tells of the run last."""
    names = dict.fromkeys(name for row in rows for name in row)
    last = [name for name in ("warnings", "error", "seconds", "everybyte") if name in names]
    return [*(name for name in names if name not in last), *last]


def _alike(values: list[Any]) -> list[Any]:
    """Values of one type: text where one is text, fractions where one is a fraction."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    make = float if kinds <= {int, float} else str
    return [None if value is None else make(value) for value in values]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtra("Parquet", "cluster") from None
    return pa, parquet

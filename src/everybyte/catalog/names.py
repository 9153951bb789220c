"""How names of the catalogue are compared: without regard to case and separators; an unknown one gets its nearest."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from io import StringIO
from os.path import dirname, join
from typing import NoReturn

from everybyte.basics.errors import BadInput

DATA = join(dirname(__file__), "data")
"""The folder of the catalogue's files; its README names the sources."""

_WORD = re.compile(r"[a-z0-9]+")
_SEPARATORS = re.compile(r"[^a-z0-9.]+|(?<![0-9])\.|\.(?![0-9])")
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])[^a-z0-9]+(?=[0-9])")
_LONGEST_NAME = 200
"""No known name is longer; a longer text is shown and compared by its beginning only."""


def fold(name: str) -> str:
    """`facebook/OPT_1.3b` -> `facebookopt1.3b`: lower case without separators; between two digits they are one point, which keeps 1.3b from 13b."""
    return _SEPARATORS.sub("", _BETWEEN_DIGITS.sub(".", name.casefold()))


def words(name: str) -> list[str]:
    """The words of a name in lower case: `RTX-4090_Laptop` -> `rtx`, `4090`, `laptop`."""
    return _WORD.findall(name.casefold())


def read_table(file: str) -> list[list[str]]:
    """Rows of a CSV file of the catalogue, the header first."""
    return list(csv.reader(StringIO(_content(file).decode(), newline="")))


def read_row(file: str, name: str) -> list[str] | None:
    """The row of a CSV file of the catalogue that begins with a name, whatever its case, without reading the others; None where no row does."""
    content = _content(file)
    begin = content.lower().find(f"\n{name.lower()},".encode()) + 1
    if not begin:
        return None
    row = next(csv.reader(StringIO(content[begin:].decode(), newline="")))
    return row if row[0].lower() == name.lower() else None


@cache
def read_header(file: str) -> list[str]:
    """The names of the columns of a CSV file of the catalogue."""
    return _content(file).partition(b"\n")[0].decode().strip().split(",")


@cache
def _content(file: str) -> bytes:
    with open(join(DATA, file), "rb") as data:
        return data.read()


def refuse_unknown(name: str, key: str, index: Mapping[str, str], *, path: str, kind: str, way_out: str) -> NoReturn:
    """Raise BadInput for a `name` whose folded `key` is not in `index` (folded name -> catalogue name), with the three nearest."""
    import difflib  # not paid for where names are known

    close = difflib.get_close_matches(key[:_LONGEST_NAME], index, n=50, cutoff=0.0)
    found = list(dict.fromkeys(index[folded] for folded in close))[:3]
    shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "..."
    raise BadInput(path, f"unknown {kind} {shown!r}; the nearest are {', '.join(found)}; {way_out}")

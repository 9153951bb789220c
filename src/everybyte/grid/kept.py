"""Finished rows on disk: each is written as soon as it is there, so that a sweep that was killed goes on where it was."""

from __future__ import annotations

import os
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.grid.rows import Row

ENDING = ".rows"
"""Of the file beside the table."""


class _Line(msgspec.Struct, frozen=True):
    key: str
    row: Row


class Kept:
    """The rows of the file `path`, by the keys of their cases. One process at a time writes it; a line that was cut off by a kill is worked out again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self._file: BinaryIO

    def __enter__(self) -> Self:
        try:
            self._file = open(self.path, "a+b")  # closed at the exit of the context
        except OSError as error:
            raise BadInput(self.path, f"cannot be written: {error.strerror or error}") from None
        _lock(self._file, self.path)
        self._file.seek(0)
        whole = 0
        for line in self._file:
            found = _read(line)
            if found is None:
                if line.endswith(b"\n"):
                    self._file.close()
                    raise BadInput(self.path, "holds something else than rows of a sweep; name another file with --to")
                break
            self.rows[found.key] = found.row
            whole += len(line)
        self._file.truncate(whole)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def keep(self, key: str, row: Row) -> None:
        """Writes a row through to the system, which keeps it when this process is killed."""
        self.rows[key] = row
        self._file.write(msgspec.json.encode(_Line(key, row)) + b"\n")
        self._file.flush()


def _read(line: bytes) -> _Line | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError:
        return None


def _lock(file: BinaryIO, path: str) -> None:
    """A lock that goes with the process, however it ends. Windows has none of this kind and opens the file once only."""
    if os.name == "nt":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise BadInput(path, "another sweep is writing this file; wait for it, or name another file with --to") from None

"""Where bytes come from: a local file. Every read is bounded, and what cannot be read is refused with its place."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

from everybyte.basics.errors import BadInput


class Source(Protocol):
    """Bytes that can be read by range."""

    @property
    def place(self) -> str:
        """What messages call it: a path or a URL."""
        ...

    @property
    def size(self) -> int:
        """Bytes in all."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`. Raises BadInput if there are fewer."""
        ...


class Folder(Protocol):
    """Files side by side: a local folder, or a repository of the hub."""

    @property
    def place(self) -> str:
        """What messages call it."""
        ...

    def names(self) -> list[str]:
        """Names of its files, sorted."""
        ...

    def open(self, name: str) -> Source:
        """The file called `name`. Raises BadInput if it cannot be read."""
        ...


class LocalFile:
    """A regular file of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = printable(path)
        try:
            status = path.stat()
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            raise BadInput(self.place, f"cannot be read: {_reason(error)}") from None
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(self.place, "is not a regular file")
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except OSError as error:
            raise BadInput(self.place, f"cannot be read: {_reason(error)}") from None
        if len(data) != length:
            raise BadInput(self.place, f"ends at byte {offset + len(data)}, where {length} bytes from byte {offset} were expected: truncated")
        return data


class LocalFolder:
    """A folder of this machine; folders inside it are not looked into."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = printable(path)

    def names(self) -> list[str]:
        """Names of the entries, sorted."""
        try:
            return sorted(entry.name for entry in self._path.iterdir())
        except OSError as error:
            raise BadInput(self.place, f"cannot be read: {_reason(error)}") from None

    def open(self, name: str) -> LocalFile:
        """The file called `name`."""
        return LocalFile(self._path / name)


def printable(path: Path) -> str:
    """A path that may hold bytes which are no text, made safe to print."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

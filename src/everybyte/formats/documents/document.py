"""A tree of plain data with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everybyte.formats.bag import Bag
from everybyte.formats.place import Given, Place
from everybyte.formats.source import Source


class Document(NamedTuple):
    """A mapping (or list) of a file. Paths are written `a.b[0].c`, keys as they stand in the file."""

    value: Any
    lines: Mapping[str, int]
    """Path -> line, from 1."""
    source: Source

    def place(self, path: str = "") -> Place:
        """Where a path was written, or the nearest part of it that was."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.source.place(self.lines.get(path))

    def get(self, path: str) -> Any:
        """The value at a path of keys, or None."""
        found = self.value
        for key in path.split("."):
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return found

    def given(self, path: str) -> Given | None:
        """The value at a path with its place; None if there is none."""
        value = self.get(path)
        return None if value is None else Given(value, self.place(path))

    def part(self, path: str) -> Document:
        """The tree below a path, as a document of its own with the same places."""
        cut = len(path) + 1
        lines = {key[cut:]: line for key, line in self.lines.items() if key.startswith((path + ".", path + "["))}
        return Document(self.get(path), lines, self.source)

    def bag(self) -> Bag:
        """All leaves by dotted key. Lists are leaves."""
        return Bag((key, Given(value, self.place(key))) for key, value in _leaves(self.value, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif path:
        yield path, value

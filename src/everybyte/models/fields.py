"""Reading a mapping that a person wrote by hand: every key must be known, every value in its range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.models.config import LIMIT, shorten


class Fields:
    """A checked mapping with its place. Reading methods raise BadInput with the key's path."""

    def __init__(self, values: object, path: str, known: Collection[str]) -> None:
        if not isinstance(values, Mapping):
            raise BadInput(path, f"must be a mapping, not {type(values).__name__}")
        for key in values:
            if key not in known:
                raise BadInput(f"{path}.{key}", f"is not known here{did_you_mean(str(key), known)}; known: {', '.join(known)}")
        self.values: Mapping[str, Any] = values
        self.path = path

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; without a default the key is required."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise BadInput(f"{self.path}.{key}", "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LIMIT:
            raise BadInput(f"{self.path}.{key}", f"must be a whole number from {least:,} to 2^40, not {shorten(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise BadInput(f"{self.path}.{key}", f"must be true or false, not {shorten(value)}")
        return value

    def word(self, key: str, known: Collection[str], default: str | None = None) -> str:
        """One of the known words."""
        value = self.values.get(key, default)
        if value is None:
            raise BadInput(f"{self.path}.{key}", f"is missing; it is one of {', '.join(known)}")
        if not isinstance(value, str) or value not in known:
            raise BadInput(f"{self.path}.{key}", f"must be one of {', '.join(known)}, not {shorten(value)}{did_you_mean(str(value)[:100], known)}")
        return value

    def integers(self, key: str, least: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers of at least `least`; None if the key is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(v, int) and not isinstance(v, bool) and least <= v <= LIMIT for v in value):
            raise BadInput(f"{self.path}.{key}", f"must be a list of whole numbers of at least {least}, not {shorten(value)}")
        return tuple(value)

    def part(self, key: str, known: Collection[str]) -> Fields:
        """A mapping inside this one."""
        return Fields(self.values.get(key), f"{self.path}.{key}", known)

    def parts(self, key: str, known: Collection[str], most: int) -> list[Fields]:
        """A list of mappings, at least one and at most `most`."""
        value = self.values.get(key)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise BadInput(f"{self.path}.{key}", f"must be a list of 1 to {most} mappings")
        return [Fields(item, f"{self.path}.{key}[{index}]", known) for index, item in enumerate(value)]

"""Keys that somebody wrote, in one flat space: `fsdp_config.offload_params` of a file and `--fsdp_config.offload_params` of a command are the same key.

A bag knows which of its keys were looked at. What is left at the end is reported; nothing is dropped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from everybyte.formats.place import Given, Place

_DASHES = re.compile(r"(^|\.)-+")


def normal(key: str) -> str:
    """`--micro-batch-size` -> `micro_batch_size`: dashes and underscores are one, leading dashes are none."""
    return _DASHES.sub(r"\1", key).replace("-", "_")


class Bag:
    """Given values by normal key. An empty value (`lora_r:`) counts as unset: it is known, and says nothing."""

    def __init__(self, given: Mapping[str, Given] | Iterable[tuple[str, Given]] = ()) -> None:
        pairs = given.items() if isinstance(given, Mapping) else given
        self._given = {normal(key): value for key, value in pairs}
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.peek(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def peek(self, key: str) -> Given | None:
        """What was given for a key, without counting as read; None if nothing was, or an empty value."""
        found = self._given.get(key)
        return None if found is None or found.value is None else found

    def take(self, *keys: str) -> Given | None:
        """What was given for the first of the keys that has a value; all of them count as read."""
        self._read.update(keys)
        return next((found for key in keys if (found := self.peek(key)) is not None), None)

    def value(self, *keys: str) -> Any:
        """As `take`, without the place."""
        found = self.take(*keys)
        return None if found is None else found.value

    def place(self, key: str) -> Place | None:
        """Where a key was given."""
        found = self._given.get(key)
        return None if found is None else found.place

    def sub(self, prefix: str) -> Bag:
        """The keys below `prefix.`, with the prefix taken off. They count as read here; the new bag reports what is left of them."""
        head = prefix + "."
        inside = [key for key in self._given if key.startswith(head)]
        self._read.update((prefix, *inside))
        return Bag({key[len(head) :]: self._given[key] for key in inside})

    def over(self, other: Bag) -> Bag:
        """Both, where a key that is in both has the value of this one."""
        return Bag({**other._given, **self._given})

    def drop(self, key: str) -> None:
        """A key that says nothing."""
        self._given.pop(key, None)

    def ignore(self, keys: Iterable[str]) -> None:
        """Keys that are known and change nothing."""
        self._read.update(keys)

    def unread_keys(self) -> list[str]:
        """Keys that nobody took or ignored."""
        return [key for key in self._given if key not in self._read]

    def unread(self) -> list[tuple[str, Given]]:
        """Keys with a value that nobody took."""
        return [(key, given) for key, given in self._given.items() if key not in self._read and given.value is not None]

"""The settings of a job while a writer takes them one by one; what no writer took is told, never dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from everybyte.job import Job, job_to_dict

QUIET = frozenset({"everybyte", "name", "train.framework", "train.version", "serve.engine", "serve.version"})
"""Settings that the choice of a framework says."""


class Text(NamedTuple):
    """A configuration."""

    text: str
    left: tuple[str, ...]
    """Settings of the job that this form has no place for."""


class Settings:
    """Leaves of a job by key path."""

    def __init__(self, job: Job) -> None:
        self._flat = dict(_leaves(job_to_dict(job), ""))
        self._taken: set[str] = set()

    def peek(self, key: str) -> Any:
        """A value that stays there; None if there is none."""
        return self._flat.get(key)

    def take(self, key: str) -> Any:
        """A value that is written; None if there is none, or it is written already."""
        if key in self._taken:
            return None
        self._taken.add(key)
        return self._flat.get(key)

    def open(self, key: str) -> Any:
        """A value that is not written yet; it stays there."""
        return None if key in self._taken else self._flat.get(key)

    def below(self, head: str) -> dict[str, Any]:
        """The settings below a head that nobody took, by the rest of their path."""
        return {key[len(head) + 1 :]: value for key, value in self._flat.items() if key.startswith(head + ".") and key not in self._taken}

    def skip(self, *keys: str) -> None:
        """Settings that another part of the same run says."""
        self._taken.update(keys)

    def left(self) -> tuple[str, ...]:
        """What nobody took."""
        return tuple(key for key in self._flat if key not in self._taken and key not in QUIET)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif path:
        yield path, value

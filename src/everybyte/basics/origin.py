"""Where the value of a setting comes from."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

USER = "given"
"""Origin of a value that the job states."""


def default_of(framework: str, why: str = "") -> str:
    """Origin of a value that the framework sets when the user does not."""
    return f"default of {framework}" + (f": {why}" if why else "")


def inferred(reason: str) -> str:
    """Origin of a value that follows from others."""
    return f"inferred: {reason}"


class Setting(NamedTuple, Generic[T]):
    """A value and its origin. An unset key is not its default: the origin says which it was."""

    key: str
    value: T
    origin: str

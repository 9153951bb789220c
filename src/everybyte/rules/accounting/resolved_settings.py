"""The settings of a job with their defaults filled in, each with its origin."""

from __future__ import annotations

from typing import Any, TypeVar

from everybyte.basics.origin import USER, Setting

T = TypeVar("T")


class ResolvedSettings:
    """Collects settings while an engine works a job out, and what it takes for granted."""

    def __init__(self) -> None:
        self.settings: list[Setting[Any]] = []
        self.assumptions: list[str] = []
        self.warnings: list[str] = []

    def pick(self, key: str, given: T | None, default: T, origin: str) -> T:
        """The given value, or the default with where it comes from. Both are recorded."""
        value = default if given is None else given
        self.note(key, value, origin if given is None else USER)
        return value

    def note(self, key: str, value: Any, origin: str) -> None:
        """Records a setting that follows from others."""
        self.settings.append(Setting(key, list(value) if isinstance(value, tuple) else value, origin))

    def assume(self, text: str) -> None:
        """Records something that the answer takes for granted, once."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def warn(self, text: str) -> None:
        """Records something that a reader should check, once."""
        if text not in self.warnings:
            self.warnings.append(text)

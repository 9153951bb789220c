"""The exceptions of the package. Everything a person can cause is a `BadInput` that names its place and a way out."""

from __future__ import annotations

from collections.abc import Iterable


class EverybyteError(Exception):
    """Root of all errors that this package raises on purpose."""


class BadInput(EverybyteError):
    """Input that cannot be answered. Shown as one message; the commands exit with 2.

    `path` is the place: a key path of the job (`train.micro_batch`), or a file with a position.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class Unsupported(BadInput):
    """Input that is well formed, but outside what the package models. It is refused, never approximated."""


class MissingExtra(EverybyteError):
    """An optional dependency is needed and not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install 'everybyte[{extra}]'")
        self.extra = extra


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names closest to `name`, best first, without regard to case."""
    import difflib  # not paid for where nothing is wrong

    by_folded = {k.casefold(): k for k in known}
    return [by_folded[m] for m in difflib.get_close_matches(name.casefold(), list(by_folded), n=count, cutoff=0.3)]


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """A phrase to append to a message: ` (did you mean a, b or c?)`, or nothing when no name is near."""
    found = nearest(name, known, count)
    if not found:
        return ""
    text = found[0] if len(found) == 1 else ", ".join(found[:-1]) + " or " + found[-1]
    return f" (did you mean {text}?)"

"""A job under construction. Every value has an origin: a place, a framework's default with the version since which it holds, or the reason it was inferred."""

from __future__ import annotations

from typing import Any

from everybyte.basics.origin import Setting, default_of, inferred
from everybyte.formats.bag import Bag
from everybyte.formats.finding import Finding, Missing, Severity, Unknown
from everybyte.formats.place import Given, Place

STATED, DEFAULT, INFERRED = "stated", "default", "inferred"


class JobDraft:
    """Job keys (`train.micro_batch`, `model.shape.layers`, `train.extra.NAME`) with value and origin, and what was found on the way."""

    def __init__(self, framework: str, name: str = "") -> None:
        self.framework = framework
        """The format it was read from, as origins call it."""
        self.name = name
        """Of the launch or file, where several jobs come out of one."""
        self.settings: dict[str, Setting[Any]] = {}
        self.basis: dict[str, str] = {}
        """Job key -> stated, default or inferred."""
        self.findings: list[Finding] = []
        self.unknown: list[Unknown] = []
        self.missing: list[Missing] = []

    def __contains__(self, key: str) -> bool:
        return key in self.settings

    def value(self, key: str) -> Any:
        """The value of a job key, or None."""
        setting = self.settings.get(key)
        return None if setting is None else setting.value

    def stated(self, key: str) -> bool:
        """Whether somebody wrote it."""
        return self.basis.get(key) == STATED

    def place(self, key: str) -> str:
        """Where a value comes from, in words; empty if there is none."""
        setting = self.settings.get(key)
        return "" if setting is None else setting.origin

    def state(self, key: str, value: Any, place: Place | str) -> None:
        """A value that somebody wrote; the last one wins. None says nothing."""
        self._put(key, value, str(place), STATED)

    def default(self, key: str, value: Any, since: str = "", of: str = "") -> None:
        """A value that the framework sets where nobody else did."""
        if key not in self.settings:
            self._put(key, value, default_of(of or self.framework) + (f" since {since}" if since else ""), DEFAULT)

    def infer(self, key: str, value: Any, reason: str) -> None:
        """A value that follows from others, where nobody stated one. It goes before a default."""
        if not self.stated(key):
            self._put(key, value, inferred(reason), INFERRED)

    def drop(self, key: str) -> None:
        """Takes a value out again."""
        self.settings.pop(key, None)
        self.basis.pop(key, None)

    def take_given(self, settings: dict[str, Given] | Any) -> None:
        """States job keys that a launcher or container says, where nothing else did."""
        for key, given in settings.items():
            if not self.stated(key):
                self.state(key, given.value, given.place)

    def find(self, id_: str, severity: Severity, place: Place | str, message: str, remedy: str = "", change: dict[str, Any] | None = None) -> None:
        """Adds a finding."""
        self.findings.append(Finding(id=id_, severity=severity, place=str(place), message=message, remedy=remedy, change=change))

    def miss(self, key: str, message: str) -> None:
        """Says that nothing given decides a job key."""
        if key not in self.settings and all(missing.key != key for missing in self.missing):
            self.missing.append(Missing(key=key, message=message))

    def report(self, bag: Bag) -> None:
        """The keys of a bag that nobody took are unknown."""
        self.unknown += [Unknown(key=given.place.flag or key, value=given.value, place=str(given.place)) for key, given in bag.unread()]

    def _put(self, key: str, value: Any, origin: str, basis: str) -> None:
        if value is None:
            return
        self.settings[key] = Setting(key, value, origin)
        self.basis[key] = basis

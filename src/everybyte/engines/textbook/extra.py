"""Keys of `extra`: the textbook has none that are read."""

from __future__ import annotations

from everybyte.job.extra import Section

SECTIONS: tuple[type[Section], ...] = ()

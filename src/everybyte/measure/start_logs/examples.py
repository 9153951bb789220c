"""What each tool prints, and the figures that are read from it: the table of the documentation, made by reading."""

from __future__ import annotations

import io
from importlib.resources import files
from typing import NamedTuple

from everybyte.measure.start_logs.figure import StartLog
from everybyte.measure.start_logs.read import read


class Example(NamedTuple):
    """A printed line."""

    engine: str
    generation: str
    """Which releases or options of the tool print it so; empty where all that were read do."""
    line: str

    def found(self) -> StartLog:
        """What the reader makes of the line alone. Raises BadInput where it makes nothing of it."""
        return read(io.BytesIO(self.line.encode()), self.engine)


def examples() -> tuple[Example, ...]:
    """The lines of data/examples.txt, in order."""
    text = (files(__package__) / "data/examples.txt").read_text(encoding="utf-8")
    rows = [line.split("|", 2) for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(Example(engine.strip(), generation.strip(), line.strip()) for engine, generation, line in rows)

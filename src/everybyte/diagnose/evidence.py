"""What a log shows, put in order: the deciding message, the phase, what else was said."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

from everybyte.basics.record import Record
from everybyte.measure.messages.facts import Facts
from everybyte.measure.messages.form import Message
from everybyte.measure.messages.scan import Scan

STAGE_PHASES = {"load": "load", "save": "save", "eval": "eval", "capture": "capture"}
"""What a log says that begins -> the phase that a message behind it falls in, where no frame says more."""
BREADTH = {"fault": 0, "driver": 1, "host": 2}
"""A message with numbers decides before one that only says that memory was refused, and both before the host's."""


class Place(Record, frozen=True):
    """What the place of a message in the program says."""

    phase: str
    causes: tuple[tuple[str, float], ...]
    why: str
    line: str
    """The line that says so."""


class Held(Record, frozen=True):
    """What an estimate of the job says, in bytes, where a job is known."""

    static: int | None = None
    weights: int | None = None
    peak: int | None = None
    capacity: int | None = None


class Evidence(Record, frozen=True):
    """All that the rules look at."""

    scan: Scan
    message: Message | None
    place: Place | None
    held: Held = Held()

    @property
    def facts(self) -> Facts:
        """What the log says elsewhere."""
        return self.scan.facts

    @property
    def phase(self) -> str | None:
        """The phase in which memory ran out, as far as it is known."""
        if self.place is not None:
            return self.place.phase
        if self.message is None:
            return None
        if self.message.form.phase:
            return self.message.form.phase
        return STAGE_PHASES.get(self.facts.stage_at(self.message.line) or "")

    @property
    def text(self) -> str:
        """The traceback in front of the message, and the message."""
        if self.message is None:
            return ""
        return "\n".join((*self.scan.frames.get(self.message.line, ()), self.message.text))


@cache
def frame_table() -> tuple[tuple[re.Pattern[str], Place], ...]:
    """pattern -> what a line says that matches it (data/frames.toml)."""
    rows = tomllib.loads((files(__package__) / "data/frames.toml").read_text(encoding="utf-8"))["frame"]
    return tuple((re.compile(row["pattern"]), Place(row["phase"], tuple(row["causes"].items()), row["why"], "")) for row in rows)


def place_of(scan: Scan, message: Message) -> Place | None:
    """The innermost line of the traceback that says where the program was; else a line that follows the message."""
    lines = scan.frames.get(message.line, ())
    frames = [line for line in lines if not line.lstrip().startswith(("#", "INFO", "WARNING"))]
    for line in (*reversed((*frames, message.text)), *scan.behind.get(message.line, ())):
        for pattern, place in frame_table():
            if pattern.search(line):
                return Place(place.phase, place.causes, place.why, line.strip()[:160])
    return None


def deciding(messages: tuple[Message, ...]) -> Message | None:
    """The message that decides: the earliest by time where every line has one, else by place; one of the kind that says most."""
    if not messages:
        return None
    kind = min(BREADTH[one.form.weight] for one in messages)
    candidates = [one for one in messages if BREADTH[one.form.weight] == kind]
    forms = {len(one.when) if one.when else 0 for one in candidates}
    if len(forms) == 1 and 0 not in forms:
        return min(candidates, key=lambda one: (one.when or "", one.line))
    return candidates[0]


def gathered(scan: Scan, held: Held = Held()) -> Evidence:  # noqa: B008  # a constant
    """The evidence of a log."""
    message = deciding(scan.messages)
    return Evidence(scan, message, place_of(scan, message) if message is not None else None, held)

"""A log read once from end to end: messages about memory, other faults, the frames in front of a message, and facts that lie elsewhere in the log."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from everybyte.basics.record import Record
from everybyte.measure.log_text import Line, lines_of
from everybyte.measure.messages.facts import Facts, Gatherer
from everybyte.measure.messages.find import AHEAD, message_at, triggers
from everybyte.measure.messages.form import Message

BEHIND = 160
"""Lines before a message that may hold its traceback."""
_LOG_LINE = re.compile(r"^\s*(?:\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|(?:INFO|WARNING|ERROR|DEBUG)\b|Traceback|File \")|out of memory")
"""Lines that programs write, not people."""
MOST_LOG_LINES = 4
"""Of them in a person's report, which may quote a message."""
LONGEST_REPORT = 60
"""Lines of a text that may be a report in a person's own words."""
MOST_MESSAGES = 2000
"""Messages that are kept; more are counted. A job of 1,024 ranks prints as many."""
ADVICE = re.compile(
    r"(?:If|if|in case of|In case of|to avoid|might cause|may cause|may lead to|can cause) (?:an |the )?(?:OOM|[Oo]ut[- ]of[- ][Mm]emory)(?! on)(?: error)?"
)
"""Advice texts speak of what has not happened."""
_PREFIX = re.compile(r"^(?:\[rank\d+\]:?|\[default\d+\]:?|\(\w[^)]*pid=[^)]*\)|\S+\s*\|)\s*")


class Scan(Record, frozen=True):
    """What a log says."""

    messages: tuple[Message, ...]
    """In the order of the log, without warnings and sequels."""
    count: int
    """All messages of lack of memory, also those that are not kept."""
    sequels: tuple[Message, ...]
    warnings: tuple[Message, ...]
    other_faults: tuple[Message, ...]
    frames: dict[int, tuple[str, ...]]
    """line of a message -> the lines of the traceback in front of it, outermost first."""
    behind: dict[int, tuple[str, ...]]
    """line of a message -> the few lines behind it."""
    facts: Facts
    lines: int
    report: str = ""
    """The whole text, where it is short enough to be a person's report."""


def scan(stream: BinaryIO) -> Scan:
    """Reads a log of any size; memory stays bounded."""
    words = triggers()
    gatherer = Gatherer()
    recent: deque[Line] = deque(maxlen=BEHIND)
    kept: dict[str, list[Message]] = {"fault": [], "sequel": [], "warning": [], "other": []}
    frames: dict[int, tuple[str, ...]] = {}
    behind: dict[int, tuple[str, ...]] = {}
    told: list[str] = []
    count = last = 0
    for window in _windows(lines_of(stream)):
        line = window[0]
        last = line.number
        gatherer.see(line)
        if last <= LONGEST_REPORT and not _LOG_LINE.search(line.text):
            told.append(line.text)
        if any(word in line.text for word in words) and not ADVICE.search(line.text):
            found = message_at(list(window))
            if found is not None:
                kind = found.form.weight if found.form.weight in ("sequel", "warning", "other") else "fault"
                count += kind == "fault"
                if len(kept[kind]) < MOST_MESSAGES:
                    kept[kind].append(found)
                    if kind == "fault":
                        frames[line.number] = _traceback(recent, line)
                        behind[line.number] = tuple(one.text for one in islice(window, 1, None))
        recent.append(line)
    return Scan(
        tuple(kept["fault"]),
        count,
        tuple(kept["sequel"]),
        tuple(kept["warning"]),
        tuple(kept["other"]),
        frames,
        behind,
        gatherer.facts(),
        last,
        "\n".join(told) if last <= LONGEST_REPORT and len(told) >= last - MOST_LOG_LINES else "",
    )


def _windows(lines: Iterator[Line]) -> Iterator[deque[Line]]:
    """Each line with the few that follow it."""
    window = deque(islice(lines, AHEAD))
    for line in lines:
        window.append(line)
        yield window
        window.popleft()
    while window:
        yield window
        window.popleft()


def _traceback(recent: deque[Line], line: Line) -> tuple[str, ...]:
    """The lines since the last traceback began, of the same process where lines name it."""
    mark = _PREFIX.match(line.text)
    own = [one for one in recent if mark is None or one.text.startswith(mark.group().strip())] or list(recent)
    start = max((i for i, one in enumerate(own) if "Traceback (most recent call last)" in one.text), default=max(len(own) - 40, 0))
    return tuple(one.text for one in own[start:])

"""What changed in releases, for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.catalog.releases import Event, Line, written
from everybyte.report.catalogue import show_table
from everybyte.report.columns import wrap

INDENT = 2


def show_lines(console: Console, lines: Sequence[Line]) -> None:
    """A row for each framework, engine or library."""
    rows = [[line.name, line.title, line.newest.name, str(len(line.changes)), line.newest.source] for line in lines]
    show_table(console, ("name", "title", "newest read", "changes", "source"), rows, "lllrl")


def show_events(console: Console, line: Line, events: Sequence[Event]) -> None:
    """What happened in each release, the newest first."""
    console.print(Text(line.title, style="bold").append(f"  newest release read: {line.newest.name} ({line.newest.source})", style="not bold dim"))
    if not events:
        console.print("nothing that changes memory is known of this release")
    for release, happened in groupby(events, key=lambda event: event.release):
        console.print(Text(f"\n{named(release)}", style="bold"))
        for event in happened:
            text = Text(" " * INDENT).append(event.text).append(f"  [{event.change.source}]", style="dim")
            console.print(wrap(text, console.width, INDENT * 2), soft_wrap=True)


def named(release: tuple[int, ...]) -> str:
    """`0.20`, or what stands for the first release."""
    return written(release) if release else "from the first release on"


def as_plain(line: Line, events: Sequence[Event]) -> dict[str, Any]:
    """The same as data: the releases that were read, and the changes with their places as people write them."""
    return {
        "name": line.name,
        "title": line.title,
        "newest": line.newest.name,
        "releases": [{"name": known.name, "note": known.note, "source": known.source} for known in line.known],
        "changes": [
            {
                "release": written(event.release) if event.release else None,
                "ends": event.ends,
                **{key: value for key, value in event.change._asdict().items() if key not in ("since", "until")},
                "since": written(event.change.since) if event.change.since else None,
                "until": written(event.change.until) if event.change.until else None,
            }
            for event in events
        ],
    }

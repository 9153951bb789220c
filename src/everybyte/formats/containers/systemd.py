"""systemd units: `ExecStart=` with the environment that the unit sets."""

from __future__ import annotations

import re
import shlex

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.place import Given, Place
from everybyte.formats.shell.script import commands_of_shell
from everybyte.formats.source import Source

_ENTRY = re.compile(r"^[ \t]*(ExecStart|Environment|EnvironmentFile)[ \t]*=[ \t]*((?:[^\n\\]|\\[^\n]|\\\n)*)", re.MULTILINE)


def commands_of_text(source: Source, context: Context) -> list[Command]:
    """The commands of a unit."""
    environment: dict[str, Given] = {}
    starts: list[tuple[str, int]] = []
    for match in _ENTRY.finditer(source.text):
        line = source.text.count("\n", 0, match.start()) + 1
        if match[1] == "ExecStart":
            text = match[2].lstrip("@-:+!")
            starts = [*starts, (text, line)] if text.strip() else []
        elif match[1] == "Environment":
            environment.update(_pairs(match[2].replace("\\\n", " "), source, line))
        else:
            given = context.find(match[2].strip().lstrip("-"))
            environment.update(_lines(given) if given is not None else {})
    found: list[Command] = []
    for text, line in starts:
        found += commands_of_shell(source._replace(text=text + "\n"), context, environment=environment, first_line=line)
    return found


def _pairs(text: str, source: Source, line: int) -> dict[str, Given]:
    """`Environment="A=b c" D=e`."""
    try:
        parts = shlex.split(text)
    except ValueError:
        parts = text.split()
    pairs = (part.partition("=") for part in parts if "=" in part)
    return {name: Given(value, Place(source.path, line, name)) for name, _, value in pairs}


def _lines(source: Source) -> dict[str, Given]:
    """An environment file: one `NAME=value` a line."""
    found = {}
    for number, line in enumerate(source.text.splitlines(), 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            found[name.strip()] = Given(value.strip().strip("\"'"), Place(source.path, number, name.strip()))
    return found

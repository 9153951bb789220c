"""What a form of message is, and what is read of one that was found. The forms are data: data/*.toml."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from everybyte.basics.record import Record
from everybyte.measure.sizes import SIZE

Weight = Literal["fault", "driver", "host", "sequel", "warning", "other"]
"""fault: memory was asked for and not there. driver: the same, outside the framework's allocator. host: memory of the machine. sequel: what follows from an
earlier fault. warning: survived. other: a fault that has nothing to do with lack of memory."""
TABLES = ("torch.toml", "engines.toml", "host.toml")
"""In the order in which they are tried on a line."""


class Form(Record, frozen=True):
    """One wording. Named groups of the pattern are the numbers that it tells."""

    id: str
    engine: str
    pattern: re.Pattern[str]
    """Searched in the line and a few that follow, joined by line ends; a match begins in the line itself."""
    triggers: tuple[str, ...]
    """Words without one of which the pattern cannot match; looked for first, for speed."""
    version: str | None = None
    """Releases that print it so."""
    weight: Weight = "fault"
    causes: tuple[tuple[str, float], ...] = ()
    """What the wording alone says of the cause, with how sure it is."""
    why: str = ""
    phase: str | None = None
    device: str = ""
    """How a device with a printed index is called: `cuda:`."""
    facts: bool = False
    """The message has PyTorch's facts, each in a wording of its own (`facts_of_torch`)."""


class Message(Record, frozen=True):
    """A message that was found. Facts that it does not state are None; sizes are whole bytes."""

    form: Form
    line: int
    text: str
    device: str | None = None
    rank: int | None = None
    requested: int | None = None
    capacity: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    """Allocated, and what the allocator keeps without using it."""
    free: int | None = None
    process: int | None = None
    other: int | None = None
    """What other processes hold."""
    others: tuple[int, ...] = ()
    """The same process by process, where the message lists them."""
    private: int | None = None
    """In private pools, such as those of CUDA graphs."""
    allowed: int | None = None
    """What a limit lets the process have."""
    needs: int | None = None
    """Tokens that are needed, where the message counts tokens."""
    has: int | None = None
    """Tokens that there are."""
    when: str | None = None
    """The time in front of the line."""

    @property
    def rest(self) -> int | None:
        """Reserved, not allocated."""
        return None if self.reserved is None or self.allocated is None else self.reserved - self.allocated


def _pattern(text: str) -> re.Pattern[str]:
    """A space stands for any run of spaces and line ends: long messages are wrapped."""
    return re.compile(text.replace("<SIZE>", SIZE).replace(" ", r"\s+"))


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return {name: tomllib.loads((files(__package__) / "data" / name).read_text(encoding="utf-8")) for name in TABLES}


@cache
def forms() -> tuple[Form, ...]:
    """Every form, special ones before general ones."""
    found = []
    for table in _tables().values():
        for row in table["form"]:
            causes = tuple(row.pop("causes", {}).items())
            found.append(Form(pattern=_pattern(row.pop("pattern")), causes=causes, triggers=tuple(row.pop("triggers")), **row))
    return tuple(found)


@cache
def facts_of_torch() -> dict[str, re.Pattern[str]]:
    """fact -> where PyTorch's messages state it."""
    return {name: _pattern(text) for name, text in _tables()["torch.toml"]["facts"].items()}

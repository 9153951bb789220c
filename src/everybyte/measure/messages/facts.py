"""Facts of a log beside its messages: the model, the command, what an engine reported, how memory went from step to step."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import msgspec

from everybyte.basics.record import Record
from everybyte.measure.log_text import Line
from everybyte.measure.sizes import SIZE, number, size

MOST_POINTS = 10_000
"""Points of a series that are kept."""
MEMORY_HINTS = ("llocated", "emory", "Mem", "mem", "VRAM", "eserved", "MA ")
_STEP = re.compile(rf"(?:allocated|[Mm]em(?:ory)?[\w/ ]*|VRAM|reserved)['\"]?\s*[=: (]+\s*({SIZE}|[\d.]+(?= ?GiB))")
_IS_STEP = re.compile(r"\b(?:step|iter(?:ation)?|global_step|epoch|it)\b[=: \[/]*\d+", re.IGNORECASE)
_DEEPSPEED = re.compile(rf"MA ({SIZE})\s+Max_MA ({SIZE})\s+CA ({SIZE})\s+Max_CA ({SIZE})")
_HOST = re.compile(rf"CPU Virtual Memory:\s+used = ({SIZE}), percent = ([\d.]+)%")


class Pattern(NamedTuple):
    """Where a fact stands."""

    kind: str
    name: str
    hints: tuple[str, ...]
    """Words without which the pattern cannot match: looking for them is quick."""
    pattern: re.Pattern[str]


class SeenMemory(NamedTuple):
    """One line of DeepSpeed's see_memory_usage, in bytes."""

    allocated: int
    max_allocated: int
    reserved: int
    max_reserved: int


class Facts(Record, frozen=True):
    """What was gathered; empty where the log says nothing."""

    model: str | None = None
    command: str | None = None
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    """max_num_seqs, max_model_len, batched_tokens, tp, memory_fraction."""
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    """What an engine reported: weights, kv_available, activation_peak, non_torch (bytes)."""
    steps: tuple[int, ...] = ()
    """Memory at step after step (bytes), in the order of the log."""
    deepspeed: tuple[SeenMemory, ...] = ()
    host_used: int | None = None
    host_percent: float | None = None
    stages: tuple[tuple[int, str], ...] = ()
    """(line, what the log says that begins): load, train, eval, save, capture."""
    words: frozenset[str] = frozenset()
    """Marks of what runs: zero3, fsdp, eager_attention, colocated, resume, multimodal, draft."""

    def stage_at(self, line: int) -> str | None:
        """What ran at a line, by the last mark above it."""
        return next((stage for at, stage in reversed(self.stages) if at < line), None)


@cache
def patterns() -> tuple[Pattern, ...]:
    """The table of facts (data/facts.toml)."""
    rows = tomllib.loads((files(__package__) / "data/facts.toml").read_text(encoding="utf-8"))["fact"]
    return tuple(
        Pattern(row["kind"], row["name"], tuple(row["hints"]), re.compile(row["pattern"].replace("<SIZE>", SIZE).replace(" ", r"\s+"))) for row in rows
    )


class Gatherer:
    """Sees every line of a log once."""

    def __init__(self) -> None:
        self._hinted = [(hint, row) for row in patterns() for hint in row.hints]
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self._steps: list[int] = []
        self._deepspeed: list[SeenMemory] = []
        self._host: tuple[int | None, float | None] = (None, None)
        self._stages: list[tuple[int, str]] = []
        self._words: set[str] = set()

    def see(self, line: Line) -> None:
        """Takes from a line what it says."""
        text = line.text
        for hint, row in self._hinted:
            if hint in text and not self._is_known(row):
                found = row.pattern.search(text)
                if found is not None:
                    self._take(line.number, row, found)
        if any(hint in text for hint in MEMORY_HINTS):
            self._see_memory(text)

    def _is_known(self, row: Pattern) -> bool:
        return row.name in self._words or row.name in self._texts or (row.kind == "stage" and bool(self._stages) and self._stages[-1][1] == row.name)

    def _take(self, line: int, row: Pattern, found: re.Match[str]) -> None:
        if row.kind == "word":
            self._words.add(row.name)
        elif row.kind == "stage":
            if len(self._stages) < MOST_POINTS:
                self._stages.append((line, row.name))
        elif row.kind == "text":
            self._texts[row.name] = found.group(1).strip()
        elif row.kind == "number":
            self._numbers[row.name] = number(found.group(1).rstrip("."))
        elif (nbytes := size(found.group(1))) is not None:
            self._sizes[row.name] = nbytes

    def _see_memory(self, text: str) -> None:
        if found := _DEEPSPEED.search(text):
            if len(self._deepspeed) < MOST_POINTS:
                self._deepspeed.append(SeenMemory(*(size(one) or 0 for one in found.groups())))
        elif found := _HOST.search(text):
            self._host = (size(found.group(1)), float(found.group(2)))
        elif len(self._steps) < MOST_POINTS and (found := _STEP.search(text)) and _IS_STEP.search(text):
            printed = found.group(1)
            nbytes = size(printed if re.search("[A-Za-z]", printed) else f"{printed} GiB")
            if nbytes:
                self._steps.append(nbytes)

    def facts(self) -> Facts:
        """What all lines together said."""
        return Facts(
            self._texts.get("model"),
            self._texts.get("command"),
            self._numbers,
            self._sizes,
            tuple(self._steps),
            tuple(self._deepspeed),
            *self._host,
            tuple(self._stages),
            frozenset(self._words),
        )

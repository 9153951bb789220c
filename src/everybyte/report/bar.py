"""A bar of the device: what is used, by category, against the capacity."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from everybyte.ledger.answer import Answer
from everybyte.report.language import said
from everybyte.report.sums import by_category, needed
from everybyte.report.words import CATEGORY_STYLE, amount, spoken

FULL, FREE, OVER = "█", "░", "▓"
ASCII = {FULL: "#", FREE: ".", OVER: "!"}
LEAST_SHARE = 50
"""Parts below one in so many of what is used are not named."""
OUTSIDE_STYLE = "bright_black"
"""Held by the allocator or the driver, and no tensor of the ledger."""


def bar(console: Console, answer: Answer, unit: str) -> Text:
    """One line for the bar, one for the names of its largest parts. Beyond the capacity the bar goes on with another glyph."""
    _, used = needed(answer)
    capacity = answer.hardware.capacity if answer.hardware else used
    full = max(used, capacity, 1)
    label = f" {100 * used / capacity:.0f} %" if answer.hardware and capacity else ""
    width = max(10, min(console.width, 100) - len(label) - 1)
    cells = _cells(answer, used, full, width)
    text = Text()
    limit = width * capacity // full
    for index, style in enumerate(cells):
        if style is None:
            text.append(glyph(console, FREE), style="dim")
        elif index >= limit:
            text.append(glyph(console, OVER), style="red")
        else:
            text.append(glyph(console, FULL), style=style)
    text.append(label, style="bold")
    text.append("\n")
    text.append_text(_legend(answer, unit, console.width))
    return text


def _parts(answer: Answer, used: int) -> list[tuple[str, str, int]]:
    """(name, style, bytes) of the bar from left to right; they add up to what is used."""
    parts = [(spoken(group.category), CATEGORY_STYLE[group.category], group.bytes) for group in by_category(answer.worst)]
    rest = used - sum(size for _, _, size in parts)
    return [*parts, (said("allocator and driver"), OUTSIDE_STYLE, rest)] if rest > 0 else parts


def _cells(answer: Answer, used: int, full: int, width: int) -> list[str | None]:
    """The style of each cell; None is free. A border between parts falls where their running sum does."""
    cells: list[str | None] = []
    running = 0
    for _, style, size in _parts(answer, used):
        running += size
        cells += [style] * (round(width * min(running, used) / full) - len(cells))
    return cells + [None] * (width - len(cells))


def _legend(answer: Answer, unit: str, width: int) -> Text:
    _, used = needed(answer)
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, style, size in _parts(answer, used):
        if size * LEAST_SHARE < used:
            continue
        word = f"{name} {amount(size, unit, 1)}"
        if text.cell_len + cell_len(word) + 4 > width:
            break
        text.append("■ " if text.cell_len == 0 else "  ■ ", style=style)
        text.append(word, style="")
    return text


def glyph(console: Console, wanted: str) -> str:
    """The character, or a plain one where the terminal knows no other."""
    return ASCII[wanted] if console.options.ascii_only else wanted

"""Aligned columns of text that fit the width of the console: the last column gives way, and no line ends in spaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from everybyte.report.language import said, said_in_runs

GAP = 2
"""Spaces between columns."""

Cell = Text | str


LEAST = 16
"""Cells below which a last column is not wrapped but cut."""


def columns(rows: Iterable[Sequence[Cell]], justify: str, width: int, indent: int = 0, *, wraps: bool = False) -> Text:
    """The rows one below the other. `justify` has one letter a column: l or r. Where the width ends, the last column goes on in the next line if it `wraps`,
    else it is cut with an ellipsis."""
    table = [[said_in_runs(cell) if isinstance(cell, Text) else Text(said(cell)) for cell in row] for row in rows]
    widths = [max((row[i].cell_len for row in table if i < len(row)), default=0) for i in range(len(justify))]
    room = width - indent - sum(widths[:-1]) - GAP * (len(widths) - 1)
    if wraps and room >= LEAST:
        table = [part for row in table for part in _wrapped(row, len(justify), room)]
    lines = Text("\n").join(_line(row, justify, widths, width, indent) for row in table)
    lines.no_wrap = True
    lines.overflow = "crop"
    return lines


def _wrapped(row: list[Text], count: int, room: int) -> list[list[Text]]:
    """A row, and rows below it with what its last cell has no room for."""
    if len(row) < count:
        return [row]
    first, *rest = wrap(row[-1], room).split("\n")
    below = [Text("") for _ in row[:-1]]
    return [[*row[:-1], first], *([*below, more] for more in rest)]


def _line(row: list[Text], justify: str, widths: list[int], width: int, indent: int) -> Text:
    line = Text(" " * indent)
    for i, cell in enumerate(row):
        last = i == len(row) - 1
        pad = " " * (widths[i] - cell.cell_len)
        shown = cell.copy()
        if last:
            room = width - line.cell_len
            shown.truncate(max(room - (len(pad) if justify[i] == "r" else 0), 1), overflow="ellipsis")
        line.append_text(Text(pad) + shown if justify[i] == "r" else shown)
        if not last:
            line.append((pad if justify[i] == "l" else "") + " " * GAP)
    line.truncate(width, overflow="ellipsis")
    line.rstrip()
    return line


def wrap(text: Text, width: int, indent: int = 0) -> Text:
    """The text in lines of at most `width` cells, broken at spaces where there are any; further lines are indented."""
    pieces = []
    rest, room = said_in_runs(text), max(width, 1)
    while rest.cell_len > room:
        cut = rest.plain.rfind(" ", 1, room + 1)
        piece = rest[: cut if cut > 0 else room]
        rest = rest[len(piece) :]
        while rest.plain.startswith(" "):
            rest = rest[1:]
        piece.rstrip()
        pieces.append(piece)
        room = max(width - indent, 1)
    return Text("\n" + " " * indent).join([*pieces, rest])

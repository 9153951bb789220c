"""Picture (d): the places that hold the bytes at the peak, as an icicle: category, part of the network, module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.by_category import living
from everybyte.ledger.entry import OUTSIDE_ALLOCATOR, Category, Entry
from everybyte.ledger.places import place, without_numbers
from everybyte.report.charts.spec import RIM, SMALL, WIDTH, Row, Spec, exact, fitted, gib, in_stack_order, picture, rim, tooltip
from everybyte.report.palette import BACKGROUND, CATEGORY_COLOUR, Theme, ink_on, mixed
from everybyte.report.words import category_label, short_size, spoken

HEIGHT = 460
COLUMNS = (0, 200, 365, WIDTH)
"""Where the three levels begin and end, in points."""
SHARES = (1, 0.88, 0.76)
"""How much of the category's colour is in the boxes of each level."""
LINE = 14
"""Points of height that a label needs."""
GAP = 7
"""Points between the edge of a box and its label."""


class Box(NamedTuple):
    """A rectangle: which level, what it stands for, and bytes from the top."""

    level: int
    category: Category
    path: tuple[str, ...]
    start: int
    bytes: int


def places(answer: Answer, rank: RankAnswer | None = None, theme: Theme = "light") -> Spec:
    """What lives at the peak of one kind of rank, by place. The heights of each of the three columns add up to all that lives then."""
    rank = rank or answer.worst
    found = boxes(rank)
    total = sum(living(rank, rank.peak_phase, outside=False).values())
    data = [_row(box, total, theme) for box in found]
    scale: Spec = {"type": "linear", "domain": [0, max(gib(total), 1e-9)], "reverse": True, "nice": False, "zero": True}
    y: Spec = {"field": "from", "type": "quantitative", "scale": scale, "axis": None}
    rectangles = {
        "data": {"values": data},
        "mark": {"type": "rect", "stroke": BACKGROUND.on(theme)},
        "encoding": {
            "x": {"field": "left", "type": "quantitative", "scale": {"domain": [0, WIDTH], "nice": False}, "axis": None},
            "x2": {"field": "right"},
            "y": y,
            "y2": {"field": "to"},
            "color": {"field": "fill", "type": "nominal", "scale": None},
            "strokeWidth": RIM,
            "tooltip": tooltip(("path", "place"), ("size", "bytes"), ("share", "of the peak")),
        },
    }
    return picture(
        {"width": WIDTH, "height": HEIGHT, "layer": [rectangles, _labels(data)]},
        title=f"Allocated memory at the peak, by module: {short_size(total)}",
        subtitle=_subtitle(answer, rank),
        description=_description(answer, rank, found),
        theme=theme,
    )


def boxes(rank: RankAnswer) -> list[Box]:
    """All rectangles of the three levels, from the top down; each level adds up to what lives at the peak."""
    here = [entry for entry in rank.ledger if rank.peak_phase in entry.phases and entry.category not in OUTSIDE_ALLOCATOR and entry.bytes]
    out: list[Box] = []
    start = 0
    for category in in_stack_order({entry.category for entry in here}):
        members = [entry for entry in here if entry.category == category]
        size = sum(entry.bytes for entry in members)
        out.append(Box(0, category, (category_label(category),), start, size))
        out += _parts(category, members, start)
        start += size
    return out


def _parts(category: Category, members: list[Entry], start: int) -> list[Box]:
    """Parts of the network below a category, the largest first, and the modules below each."""
    out: list[Box] = []
    for part, entries in _grouped((_part_of(entry), entry) for entry in members):
        size = sum(entry.bytes for entry in entries)
        path = (category_label(category), part)
        out.append(Box(1, category, path, start, size))
        below = start
        for module, rows in _grouped((_module_of(entry, entries), entry) for entry in entries):
            module_bytes = sum(entry.bytes for entry in rows)
            out.append(Box(2, category, (*path, module), below, module_bytes))
            below += module_bytes
        start += size
    return out


def _grouped(named: Iterable[tuple[str, Entry]]) -> list[tuple[str, list[Entry]]]:
    groups: dict[str, list[Entry]] = {}
    for name, entry in named:
        groups.setdefault(name, []).append(entry)
    return sorted(groups.items(), key=lambda item: -sum(entry.bytes for entry in item[1]))


def _part_of(entry: Entry) -> str:
    """`layers`, `head`, `embed`, or what the row is where it belongs to no part of the network."""
    return without_numbers(place(entry)).partition("/")[0]


def _module_of(entry: Entry, siblings: list[Entry]) -> str:
    """`mlp`; with its group (`mlp, working`) where several groups of rows lie in one part."""
    rest = without_numbers(place(entry)).partition("/")[2] or _part_of(entry)
    group = entry.id.partition("/")[0]
    return rest if len({sibling.id.partition("/")[0] for sibling in siblings}) == 1 else f"{rest}, {group}"


def _row(box: Box, total: int, theme: Theme) -> Row:
    left, right = COLUMNS[box.level], COLUMNS[box.level + 1]
    height = HEIGHT * box.bytes / total if total else 0
    fill = mixed(CATEGORY_COLOUR[box.category].on(theme), BACKGROUND.on(theme), SHARES[box.level])
    return {
        "level": box.level,
        "category": category_label(box.category),
        "left": left,
        "right": right,
        "from": gib(box.start),
        "to": gib(box.start + box.bytes),
        "path": " › ".join(box.path),
        "bytes": box.bytes,
        "size": exact(box.bytes),
        "share": f"{100 * box.bytes / total:.1f} %" if total else "",
        "label": f"{box.path[-1]}  {short_size(box.bytes)}" if height >= LINE else "",
        "middle": gib(box.start + box.bytes / 2),
        "fill": fill,
        "ink": ink_on(fill),
        "rim": rim(height),
    }


def _labels(data: list[Row]) -> Spec:
    """Name and size in each box that is high enough, cut where the column ends."""
    room = fitted(f"(datum.right - datum.left) * width / {WIDTH} - {2 * GAP}", COLUMNS[1] - 2 * GAP)
    return {
        "data": {"values": [row for row in data if row["label"]]},
        "mark": {"type": "text", "align": "left", "baseline": "middle", "fontSize": SMALL, "dx": GAP, "limit": room},
        "encoding": {
            "x": {"field": "left", "type": "quantitative"},
            "y": {"field": "middle", "type": "quantitative"},
            "text": {"field": "label"},
            "color": {"field": "ink", "type": "nominal", "scale": None},
            "tooltip": tooltip(("path", "place"), ("size", "bytes"), ("share", "of the peak")),
        },
    }


def _subtitle(answer: Answer, rank: RankAnswer) -> str:
    where = f" · {rank.label}" if len(answer.ranks) > 1 else ""
    return f"{answer.name or answer.model.name}{where} · in {spoken(rank.peak_phase)} · category, part, module"


def _description(answer: Answer, rank: RankAnswer, found: list[Box]) -> str:
    largest = sorted((box for box in found if box.level == 2), key=lambda box: -box.bytes)[:5]
    named = ", ".join(f"{' › '.join(box.path)} {short_size(box.bytes)}" for box in largest)
    where = f" of {rank.label}" if len(answer.ranks) > 1 else ""
    return f"Places{where} that hold the bytes at the peak, in {spoken(rank.peak_phase)}; the largest are {named}."

"""Picture (a): one kind of rank against its card."""

from __future__ import annotations

from everybyte.basics.units import GiB
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.by_category import by_category
from everybyte.ledger.entry import Category
from everybyte.report.charts.spec import RIM, SMALL, WIDTH, Row, Spec, colours, exact, gib, in_stack_order, picture, rim, size_axis, tooltip
from everybyte.report.language import said
from everybyte.report.palette import BACKGROUND, BAD, CAPACITY, FAINT_TEXT, FREE, LINE, Theme
from everybyte.report.sums import outcome, rank_needs
from everybyte.report.words import capital, category_label, short_size, spoken

HEIGHT = 46
"""Points of the bar."""
LABEL_ROOM = 20
"""Points above the bar for the label of the capacity."""
LEAST_ROOM = 0.16
"""Share of the width from which the free room has space for its own words."""


def card(answer: Answer, rank: RankAnswer | None = None, theme: Theme = "light") -> Spec:
    """The bytes of one kind of rank (by default of the one that needs most) at its peak as one bar, by category, against the capacity of the card.

    The parts add up to what the verdict rests on, `peak.device`: what lives, what the allocator reserves beyond it, and what lies outside the allocator.
    """
    rank = rank or answer.worst
    needed = rank_needs(answer, rank)
    capacity = answer.hardware.capacity if answer.hardware else None
    parts = by_category(rank, needed)
    labels = {category: f"{category_label(category)} {short_size(size)}" for category, size in parts.items()}
    end = max(needed, capacity or 0, 1)
    layers = [_bar(rows(answer, rank), labels, end, theme)]
    if capacity is not None:
        layers = [*_room(needed, capacity, theme), *layers, *_limit(needed, capacity, end, theme)]
    return picture(
        {"width": WIDTH, "height": HEIGHT + LABEL_ROOM, "layer": layers},
        title=capital(outcome(answer, rank)),
        subtitle=_subtitle(answer, rank),
        description=_description(answer, rank),
        theme=theme,
    )


def rows(answer: Answer, rank: RankAnswer) -> list[Row]:
    """The segments from left to right."""
    needed = rank_needs(answer, rank)
    parts = by_category(rank, needed)
    end = max(needed, answer.hardware.capacity if answer.hardware else 0, 1)
    out, start = [], 0
    for category in in_stack_order(parts):
        size = parts[category]
        label = f"{category_label(category)} {short_size(size)}"
        share = f"{100 * size / needed:.1f} %" if needed else ""
        out.append(
            {
                "category": label,
                "from": gib(start),
                "to": gib(start + size),
                "bytes": size,
                "size": exact(size),
                "share": share,
                "place": category_label(category),
                "rim": rim(WIDTH * size / end),
            }
        )
        start += size
    return out


def _bar(data: list[Row], labels: dict[Category, str], end: int, theme: Theme) -> Spec:
    return {
        "data": {"values": data},
        "mark": {"type": "rect", "stroke": BACKGROUND.on(theme)},
        "encoding": {
            "strokeWidth": RIM,
            "x": {"field": "from", "type": "quantitative", "scale": {"domain": [0, end / GiB], "nice": False}, "axis": size_axis(grid=False)},
            "x2": {"field": "to"},
            "y": {"value": LABEL_ROOM},
            "y2": {"value": LABEL_ROOM + HEIGHT},
            "color": colours(labels, theme, columns=3, room=190),
            "tooltip": tooltip(("place", "category"), ("size", "bytes"), ("share", "of total")),
        },
    }


def _room(needed: int, capacity: int, theme: Theme) -> list[Spec]:
    """What is free on the card, behind the bar, and its size where there is space for it."""
    if needed >= capacity:
        return []
    free = capacity - needed
    data = {
        "values": [{"from": gib(needed), "to": gib(capacity), "middle": gib(needed + free / 2), "words": said(f"{short_size(free)} free"), "size": exact(free)}]
    }
    x = {"field": "from", "type": "quantitative"}
    frame = {
        "data": data,
        "mark": {"type": "rect", "fill": FREE.on(theme), "stroke": LINE.on(theme)},
        "encoding": {
            "x": x,
            "x2": {"field": "to"},
            "y": {"value": LABEL_ROOM},
            "y2": {"value": LABEL_ROOM + HEIGHT},
            "tooltip": tooltip(("words", "room"), ("size", "bytes")),
        },
    }
    if free < LEAST_ROOM * capacity:
        return [frame]
    words = {
        "data": data,
        "mark": {"type": "text", "color": FAINT_TEXT.on(theme), "fontSize": SMALL},
        "encoding": {"x": {**x, "field": "middle"}, "y": {"value": LABEL_ROOM + HEIGHT / 2}, "text": {"field": "words"}},
    }
    return [frame, words]


def _limit(needed: int, capacity: int, end: int, theme: Theme) -> list[Spec]:
    """The line at the capacity; what runs over is framed."""
    x = {"field": "at", "type": "quantitative"}
    data = {"values": [{"at": gib(capacity), "words": said(f"capacity {short_size(capacity)}")}]}
    line = {
        "data": data,
        "mark": {"type": "rule", "color": CAPACITY.on(theme), "strokeWidth": 2},
        "encoding": {"x": x, "y": {"value": LABEL_ROOM - 6}, "y2": {"value": LABEL_ROOM + HEIGHT + 2}},
    }
    left = capacity > end / 3
    words = {
        "data": data,
        "mark": {
            "type": "text",
            "align": "right" if left else "left",
            "dx": -5 if left else 5,
            "color": CAPACITY.on(theme),
            "fontWeight": 600,
            "fontSize": SMALL,
        },
        "encoding": {"x": x, "y": {"value": 8}, "text": {"field": "words"}},
    }
    return [line, words] if needed <= capacity else [*_overrun(needed, capacity, end, theme), line, words]


def _overrun(needed: int, capacity: int, end: int, theme: Theme) -> list[Spec]:
    over = needed - capacity
    data = {"values": [{"from": gib(capacity), "to": gib(needed), "words": said(f"{short_size(over)} over capacity")}]}
    frame = {
        "data": data,
        "mark": {"type": "rect", "fill": None, "stroke": BAD.on(theme), "strokeWidth": 3, "strokeDash": [5, 3]},
        "encoding": {
            "x": {"field": "from", "type": "quantitative"},
            "x2": {"field": "to"},
            "y": {"value": LABEL_ROOM - 1},
            "y2": {"value": LABEL_ROOM + HEIGHT + 1},
        },
    }
    if end / 3 >= capacity or over < 0.2 * end:
        return [frame]
    words = {
        "data": data,
        "mark": {"type": "text", "align": "right", "color": BAD.on(theme), "fontWeight": 600, "fontSize": SMALL},
        "encoding": {"x": {"field": "to", "type": "quantitative"}, "y": {"value": 8}, "text": {"field": "words"}},
    }
    return [frame, words]


def _subtitle(answer: Answer, rank: RankAnswer) -> str:
    facts = [answer.name or answer.model.name]
    if answer.hardware:
        facts.append(answer.hardware.gpu)
    if len(answer.ranks) > 1:
        facts.append(f"{rank.label}, {rank.gpus:,} of {sum(r.gpus for r in answer.ranks):,} GPUs")
    facts.append(f"at the peak, in {spoken(rank.peak_phase)}")
    return " · ".join(facts)


def _description(answer: Answer, rank: RankAnswer) -> str:
    parts = by_category(rank, rank_needs(answer, rank))
    named = ", ".join(f"{category_label(c)} {short_size(parts[c])}" for c in in_stack_order(parts))
    where = f" of {rank.label}" if len(answer.ranks) > 1 else ""
    return f"Memory{where} at the peak, in {spoken(rank.peak_phase)}: {outcome(answer, rank)}. From left to right: {named}."

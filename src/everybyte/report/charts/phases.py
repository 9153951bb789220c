"""Picture (b): the step over its phases, by category."""

from __future__ import annotations

from collections.abc import Sequence

from everybyte.basics.units import GiB
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.by_category import living
from everybyte.ledger.entry import Category
from everybyte.report.charts.capacity import APART, across
from everybyte.report.charts.spec import (
    RIM,
    WIDTH,
    Row,
    Spec,
    colours,
    exact,
    fitted,
    gib,
    halo,
    in_stack_order,
    picture,
    plain_labels,
    rim,
    size_axis,
    tooltip,
)
from everybyte.report.language import said
from everybyte.report.palette import BACKGROUND, FAINT_TEXT, TEXT, Theme
from everybyte.report.words import category_label, short_size, spoken

HEIGHT = 260
ROOM = 1.16
"""The drawing is so much higher than what it shows, for the label of the peak."""


def phases(answer: Answer, rank: RankAnswer | None = None, theme: Theme = "light") -> Spec:
    """The highest instant of each phase as a stack by category, the phase of the peak marked.

    A stack is what the phase allocates. What the allocator reserves beyond it and what lies outside the allocator belong to no phase: they are in the
    picture of the card.
    """
    rank = rank or answer.worst
    facts = [answer.name or answer.model.name, *([rank.label] if len(answer.ranks) > 1 else [])]
    return phases_of(rank, facts, answer.hardware.capacity if answer.hardware else None, theme)


def phases_of(rank: RankAnswer, facts: Sequence[str] = (), capacity: int | None = None, theme: Theme = "light") -> Spec:
    """The picture of one kind of rank by itself; `facts` say what it is."""
    totals = _totals(rank)
    top = max(*(row["bytes"] for row in totals), capacity or 0, 1)
    order = [spoken(phase.name) for phase in rank.phases]
    x: Spec = {"field": "phase", "type": "nominal", "sort": order, "title": None, "axis": _axis(len(order))}
    found = in_stack_order({category for phase in rank.phases for category in living(rank, phase.name, outside=False)})
    layers = [_stacks(rows(rank, top), found, top, x, theme), *([across(capacity, theme)] if capacity is not None else []), *_labels(totals, x, theme)]
    peak = max(totals, key=lambda row: int(row["bytes"]))
    return picture(
        {"width": WIDTH, "height": HEIGHT, "layer": layers, "resolve": APART},
        title=f"Allocated memory by phase: peak {peak['short']} in {spoken(rank.peak_phase)}",
        subtitle=" · ".join([*facts, "memory at the peak of each phase"]),
        description=_description(rank, facts),
        theme=theme,
    )


def _axis(phases: int) -> Spec:
    """Names below the stacks, a word a line, so that they do not meet in a narrow picture."""
    room = fitted(f"width / {phases}", WIDTH / phases)
    return {"labelAngle": 0, "ticks": False, "labelExpr": "split(datum.label, ' ')", "labelLimit": room, "domain": False}


def rows(rank: RankAnswer, top: int = 1) -> list[Row]:
    """A row for each phase and category that lives in it; `top` bytes are as high as the drawing."""
    out = []
    for phase in rank.phases:
        parts = living(rank, phase.name, outside=False)
        start = 0
        for category in in_stack_order(parts):
            size = parts[category]
            out.append(
                {
                    "phase": spoken(phase.name),
                    "category": category_label(category),
                    "from": gib(start),
                    "to": gib(start + size),
                    "bytes": size,
                    "size": exact(size),
                    "rim": rim(HEIGHT * size / (ROOM * top)),
                }
            )
            start += size
    return out


def _totals(rank: RankAnswer) -> list[Row]:
    out = []
    for phase in rank.phases:
        size = sum(living(rank, phase.name, outside=False).values())
        out.append(
            {
                "phase": spoken(phase.name),
                "bytes": size,
                "gib": gib(size),
                "short": short_size(size),
                "peak": phase.name == rank.peak_phase,
                "allocated": exact(phase.allocated),
            }
        )
    return out


def _stacks(data: list[Row], found: list[Category], top: int, x: Spec, theme: Theme) -> Spec:
    return {
        "data": {"values": data},
        "mark": {"type": "bar", "stroke": BACKGROUND.on(theme), "width": {"band": 0.72}},
        "encoding": {
            "strokeWidth": RIM,
            "x": x,
            "y": {
                "field": "from",
                "type": "quantitative",
                "scale": {"domain": [0, ROOM * top / GiB], "nice": False},
                "axis": size_axis(domain=False, ticks=False),
            },
            "y2": {"field": "to"},
            "color": colours(plain_labels(found), theme),
            "tooltip": tooltip(("phase", "phase"), ("category", "category"), ("size", "bytes")),
        },
    }


def _labels(totals: list[Row], x: Spec, theme: Theme) -> list[Spec]:
    """The size above each stack; `peak` above the one that counts."""
    bare: Spec = {**x, "axis": None}
    height: Spec = {"field": "gib", "type": "quantitative", "axis": None}
    text: Spec = {"type": "text", "dy": -8}
    rims = {"data": {"values": totals}, "mark": {**text, **halo(theme)}, "encoding": {"x": bare, "y": height, "text": {"field": "short"}}}
    sizes = {
        "data": {"values": totals},
        "mark": text,
        "encoding": {
            "x": bare,
            "y": height,
            "text": {"field": "short"},
            "color": {"condition": {"test": "datum.peak", "value": TEXT.on(theme)}, "value": FAINT_TEXT.on(theme)},
            "tooltip": tooltip(("phase", "phase"), ("short", "total"), ("allocated", "allocated")),
        },
    }
    peaks = {"data": {"values": [row for row in totals if row["peak"]]}, "encoding": {"x": bare, "y": height}}
    words: Spec = {"type": "text", "dy": -22, "fontWeight": 700, "text": f"▼ {said('peak')}"}
    return [rims, sizes, {**peaks, "mark": {**words, **halo(theme)}}, {**peaks, "mark": words}]


def _description(rank: RankAnswer, facts: Sequence[str]) -> str:
    where = f" of {facts[1]}" if len(facts) > 1 else ""
    sizes = ", ".join(f"{row['phase']} {row['short']}" for row in _totals(rank))
    return f"Memory{where} allocated in each phase, the peak in {spoken(rank.peak_phase)}: {sizes}."

"""The course of a traced program: what lives after each event, by category."""

from __future__ import annotations

from everybyte.basics.units import GiB
from everybyte.ledger.entry import Category
from everybyte.report.charts.capacity import APART, across
from everybyte.report.charts.spec import WIDTH, Row, Spec, colours, gib, in_stack_order, picture, plain_labels, size_axis
from everybyte.report.palette import BACKGROUND, FAINT_TEXT, TEXT, Theme
from everybyte.report.words import category_label, short_size, spoken
from everybyte.trace.recording.timeline import Instant, Timeline

HEIGHT = 300
POINTS = 500
"""Instants that are drawn: of each stretch of events its highest one, so that no peak is lost."""
ROOM = 1.12
"""The drawing is so much higher than what it shows, for the names of the phases."""


def course(timeline: Timeline, name: str, capacity: int | None = None, theme: Theme = "light") -> Spec:
    """The stack of categories over all events, phases and steps marked, and the highest instant of the last step."""
    instants = timeline.instants(POINTS)
    peak = max(size for size, _ in timeline.peaks.values())
    phase, (_, at) = max(timeline.peaks.items(), key=lambda item: item[1][0])
    top = max([peak, *(sum(instant.living.values()) for instant in instants)])
    shown = capacity if capacity is not None and capacity < 2 * top else None
    domain = ROOM * max(top, shown or 0) / GiB
    found = in_stack_order({category for instant in instants for category in instant.living})
    layers = [_areas(instants, found, domain, theme), *_steps(timeline, domain, theme), *_peak(at, peak, theme)]
    if shown is not None:
        layers.append(across(shown, theme))
    return picture(
        {"width": WIDTH, "height": HEIGHT, "layer": layers, "resolve": APART},
        title=f"Event by event: the peak is {short_size(peak)} in {spoken(phase)}",
        subtitle=f"{name} · {len(timeline.traced.events):,} allocations and frees, {len(timeline.traced.marks) - 1} steps",
        description=f"Memory by category over the events of {name}; the last step peaks at {short_size(peak)} in {spoken(phase)}.",
        theme=theme,
    )


def _areas(instants: list[Instant], found: list[Category], domain: float, theme: Theme) -> Spec:
    rows: list[Row] = []
    for instant in instants:
        start = 0
        for category in found:
            size = instant.living.get(category, 0)
            rows.append({"event": instant.position, "category": category_label(category), "from": gib(start), "to": gib(start + size)})
            start += size
    return {
        "data": {"values": rows},
        "mark": {"type": "area", "interpolate": "step-after"},
        "encoding": {
            "x": {
                "field": "event",
                "type": "quantitative",
                "title": "event",
                "scale": {"nice": False, "zero": False},
                "axis": {"grid": False, "labelExpr": "format(datum.value, ',~r')", "labelOverlap": True},
            },
            "y": {
                "field": "from",
                "type": "quantitative",
                "scale": {"domain": [0, domain], "nice": False},
                "axis": size_axis(domain=False, ticks=False),
            },
            "y2": {"field": "to"},
            "color": colours(plain_labels(found), theme),
        },
    }


def _steps(timeline: Timeline, domain: float, theme: Theme) -> list[Spec]:
    """A line where each step begins, with its name."""
    rows = [{"event": mark.position, "name": mark.name, "top": domain} for mark in timeline.traced.marks[:-1]]
    x = {"field": "event", "type": "quantitative", "axis": None}
    lines = {"data": {"values": rows}, "mark": {"type": "rule", "color": FAINT_TEXT.on(theme), "strokeDash": [2, 3]}, "encoding": {"x": x}}
    names = {
        "data": {"values": rows},
        "mark": {"type": "text", "align": "left", "baseline": "top", "dx": 4, "dy": 2, "color": FAINT_TEXT.on(theme)},
        "encoding": {"x": x, "y": {"field": "top", "type": "quantitative", "axis": None}, "text": {"field": "name"}},
    }
    return [lines, names]


def _peak(at: int, peak: int, theme: Theme) -> list[Spec]:
    data = {"values": [{"event": at, "gib": gib(peak), "words": f"peak {short_size(peak)}"}]}
    encoding = {"x": {"field": "event", "type": "quantitative", "axis": None}, "y": {"field": "gib", "type": "quantitative", "axis": None}}
    text: Spec = {"type": "text", "dy": -9, "fontWeight": 700}
    halo = {"color": BACKGROUND.on(theme), "stroke": BACKGROUND.on(theme), "strokeWidth": 4}
    words = {**encoding, "text": {"field": "words"}}
    return [
        {"data": data, "mark": {"type": "point", "filled": True, "size": 40, "color": TEXT.on(theme)}, "encoding": encoding},
        {"data": data, "mark": {**text, **halo}, "encoding": words},
        {"data": data, "mark": text, "encoding": words},
    ]

"""Picture (e): memory against one setting, with the last value that fits."""

from __future__ import annotations

from itertools import pairwise
from math import gcd, sqrt

from everybyte.basics.units import GiB
from everybyte.ledger.entry import Category
from everybyte.plan.keys import GPUS
from everybyte.plan.sweep import Point, Sweep
from everybyte.report.charts.capacity import APART, across
from everybyte.report.charts.spec import RIM, SMALL, WIDTH, Row, Spec, colours, exact, gib, in_stack_order, picture, plain_labels, rim, size_axis, tooltip
from everybyte.report.language import said
from everybyte.report.palette import BACKGROUND, FAINT_TEXT, GOOD, Theme
from everybyte.report.words import category_label, short_size, spoken

HEIGHT = 260
WIDE = 8
"""From this ratio of the largest value to the smallest on, doublings are equally far apart."""
MOST_TICKS = 9
TOKENS = ("seq_len", "context", "chunk", "batched_tokens")
"""Endings of settings that count tokens."""


def knob(sweep: Sweep, theme: Theme = "light") -> Spec:
    """What each value of a setting needs, by category, against the capacity; the largest value that fits is marked.

    A value's column reaches half way to its neighbours; what lies between two values is not computed, and not drawn as if it were. Refused values leave
    their place empty, with a cross.
    """
    edges = _edges(sweep)
    top = max(*(point.needed or 0 for point in sweep.points), sweep.capacity or 0, 1)
    ceiling = min(top, 2 * sweep.capacity) if sweep.capacity else top
    found = in_stack_order({category for point in sweep.points for category in point.parts})
    x: Spec = {
        "field": "left",
        "type": "quantitative",
        "title": f"{sweep.key}, tokens" if sweep.key.endswith(TOKENS) else sweep.key,
        "scale": {"type": _scale(sweep), "domain": [edges[0], edges[-1]], "nice": False, **({"base": 2} if _scale(sweep) == "log" else {})},
        "axis": {"values": _ticks(sweep), "format": ",d", "grid": False, "labelOverlap": "greedy", "labelSeparation": 8},
    }
    layers = [_columns(rows(sweep, ceiling), found, ceiling, x, theme), *_refused(sweep, theme)]
    if sweep.capacity is not None:
        layers.append(across(sweep.capacity, theme))
    layers += _mark(sweep, theme)
    body: Spec = {"width": WIDTH, "height": HEIGHT, "layer": layers, "resolve": APART}
    return picture(body, title=_title(sweep), subtitle=_subtitle(sweep), description=_description(sweep), theme=theme)


def rows(sweep: Sweep, ceiling: int = 1) -> list[Row]:
    """A row for each value and category; `ceiling` bytes are as high as the drawing."""
    edges = _edges(sweep)
    out = []
    for index, point in enumerate(sweep.points):
        start = 0
        for category in in_stack_order(point.parts):
            for size, spare in _used_and_spare(sweep, point, category):
                out.append(
                    {
                        "value": point.value,
                        "left": edges[index],
                        "right": edges[index + 1],
                        "category": category_label(category),
                        "from": gib(start),
                        "to": gib(start + size),
                        "bytes": size,
                        "size": exact(size),
                        "whole": exact(point.needed or 0),
                        "fits": point.fits,
                        "spare": spare,
                        "verdict": _verdict(point, sweep),
                        "rim": min(0.6, rim(HEIGHT * size / ceiling)),
                    }
                )
                start += size
    return out


def _used_and_spare(sweep: Sweep, point: Point, category: Category) -> list[tuple[int, bool]]:
    """The bytes of a category; of a cache that an engine makes as large as it can, what one sequence of this length uses, and the room for others."""
    size = point.parts[category]
    if not _shows_room(sweep) or category != "kv_cache" or not point.room:
        return [(size, False)]
    used = min(size, size * point.value // point.room)
    return [(used, False), (size - used, True)] if used < size else [(size, False)]


def _shows_room(sweep: Sweep) -> bool:
    return sweep.key.endswith(".context") and any(point.room for point in sweep.points)


def _verdict(point: Point, sweep: Sweep) -> str:
    if sweep.capacity is None:
        return ""
    return "fits" if point.fits else point.why or "does not fit"


def _scale(sweep: Sweep) -> str:
    values = [point.value for point in sweep.points]
    return "log" if values[-1] >= WIDE * values[0] and len(values) < values[-1] else "linear"


def _edges(sweep: Sweep) -> list[float]:
    """The borders of the columns: half way between neighbours, on the scale of the picture."""
    values = [float(point.value) for point in sweep.points]
    if len(values) == 1:
        return [values[0] / sqrt(2), values[0] * sqrt(2)]
    if _scale(sweep) == "log":
        inner = [sqrt(a * b) for a, b in pairwise(values)]
        ends = [values[0] ** 2 / inner[0], values[-1] ** 2 / inner[-1]]
    else:
        inner = [(a + b) / 2 for a, b in pairwise(values)]
        ends = [2 * values[0] - inner[0], 2 * values[-1] - inner[-1]]
    return [float(f"{edge:.6g}") for edge in (ends[0], *inner, ends[1])]


def _ticks(sweep: Sweep) -> list[int]:
    """Values that are labelled: doublings of the smallest step where doublings are equally far apart, else every so many."""
    values = [point.value for point in sweep.points]
    if _scale(sweep) == "log":
        step = gcd(*values) if sweep.key == GPUS else 1
        values = [value for value in values if (value // step).bit_count() == 1] or values
    return values[:: -(-len(values) // MOST_TICKS)]


def _columns(data: list[Row], found: list[Category], ceiling: int, x: Spec, theme: Theme) -> Spec:
    return {
        "data": {"values": data},
        "mark": {"type": "rect", "stroke": BACKGROUND.on(theme), "clip": True},
        "encoding": {
            "strokeWidth": RIM,
            "x": x,
            "x2": {"field": "right"},
            "y": {
                "field": "from",
                "type": "quantitative",
                "scale": {"domain": [0, 1.08 * ceiling / GiB], "nice": False},
                "axis": size_axis(domain=False, ticks=False),
            },
            "y2": {"field": "to"},
            "color": colours(plain_labels(found), theme),
            "opacity": {"condition": [{"test": "datum.spare", "value": 0.25}, {"test": "datum.fits || datum.verdict == ''", "value": 1}], "value": 0.45},
            "tooltip": tooltip(("value", "value"), ("category", "category"), ("size", "bytes"), ("whole", "total"), ("verdict", "verdict")),
        },
    }


def _refused(sweep: Sweep, theme: Theme) -> list[Spec]:
    values = [{"value": point.value, "why": point.refused} for point in sweep.points if point.refused]
    if not values:
        return []
    return [
        {
            "data": {"values": values},
            "mark": {"type": "text", "text": "×", "fontSize": 14, "color": FAINT_TEXT.on(theme), "dy": -8},
            "encoding": {
                "x": {"field": "value", "type": "quantitative", "axis": None},
                "y": {"value": "height"},
                "tooltip": tooltip(("value", "value"), ("why", "refused")),
            },
        }
    ]


def _mark(sweep: Sweep, theme: Theme) -> list[Spec]:
    """A line behind the column of the last value that fits, its words above the drawing."""
    index = next((i for i, point in enumerate(sweep.points) if point.value == sweep.last), None)
    if index is None:
        return []
    edges = _edges(sweep)
    point = sweep.points[index]
    words = said(f"fits up to {point.value:,}")
    data = {"values": [{"edge": edges[index + 1], "words": words, "size": exact(point.needed or 0)}]}
    x: Spec = {"field": "edge", "type": "quantitative", "axis": None}
    details = tooltip(("words", "setting"), ("size", "needs"))
    line = {"data": data, "mark": {"type": "rule", "color": GOOD.on(theme), "strokeWidth": 2}, "encoding": {"x": x, "tooltip": details}}
    late = index + 1 > len(sweep.points) / 2
    text = {
        "data": data,
        "mark": {
            "type": "text",
            "align": "right" if late else "left",
            "dx": 1 if late else -1,
            "dy": -8,
            "fontWeight": 700,
            "fontSize": SMALL,
            "color": GOOD.on(theme),
        },
        "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "words"}, "tooltip": details},
    }
    return [line, text]


def _title(sweep: Sweep) -> str:
    key = spoken(sweep.key.rpartition(".")[2])
    if sweep.capacity is None:
        return f"Memory against {key}"
    if sweep.unlimited:
        return f"Memory against {key}: every value tried fits"
    return f"Memory against {key}: " + ("no value fits" if sweep.last is None else f"the largest that fits is {sweep.last:,}")


def _subtitle(sweep: Sweep) -> str:
    now = f" · current value {sweep.current:,}" if sweep.current is not None else ""
    refused = " · × refused" if any(point.refused for point in sweep.points) else ""
    paler = " · paler columns do not fit" if any(not p.fits and p.needed is not None for p in sweep.points) and sweep.capacity else ""
    spare = " · pale KV cache: room for further sequences" if _shows_room(sweep) else ""
    return f"{sweep.name}{now}{spare}{paler}{refused}"


def _description(sweep: Sweep) -> str:
    answered = [point for point in sweep.points if point.needed is not None]
    low, high = answered[0], answered[-1]
    against = f" against {short_size(sweep.capacity)} of the GPU" if sweep.capacity else ""
    return (
        f"Memory as {sweep.key} grows{against}: {low.value:,} needs {short_size(low.needed or 0)}, {high.value:,} needs {short_size(high.needed or 0)}. "
        f"{_title(sweep)}."
    )

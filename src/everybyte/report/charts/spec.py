"""What all pictures share: the theme, the scale of colours, the axis in GiB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everybyte.basics.units import GiB
from everybyte.ledger.entry import Category
from everybyte.report.language import said
from everybyte.report.palette import BACKGROUND, CATEGORY_COLOUR, FAINT_TEXT, LINE, STACK, TEXT, Theme
from everybyte.report.words import category_label, short_size

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH = 590
"""Points that the drawing takes; with labels on both sides and padding a picture stays below 800."""

WIDEST = 770
"""Where titles end, in points from the left edge."""

FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"
"""Fonts of the same widths: a drawing is measured on one machine and read on another."""
SMALL, NORMAL, LARGE = 11, 12, 15
"""Sizes of type in points."""

Spec = dict[str, Any]
"""A Vega-Lite specification."""

Row = dict[str, Any]
"""One datum."""


def picture(body: Spec, *, title: str, subtitle: str | Sequence[str], description: str, theme: Theme, left: int = 60) -> Spec:
    """A whole specification: `body` with the theme's colours and type, and a title that says the result.

    The title begins `left` points from the left edge and is cut where the picture would become wider than `WIDEST`."""
    return {
        "$schema": SCHEMA,
        "description": said(description),
        "background": BACKGROUND.on(theme),
        "padding": 12,
        "title": {"text": said(title), "subtitle": said(subtitle) if isinstance(subtitle, str) else [said(line) for line in subtitle], "limit": WIDEST - left},
        **body,
        "config": _config(theme),
    }


def _config(theme: Theme) -> Spec:
    text, faint, line = TEXT.on(theme), FAINT_TEXT.on(theme), LINE.on(theme)
    return {
        "font": FONT,
        "title": {
            "anchor": "start",
            "frame": "group",
            "color": text,
            "fontSize": LARGE,
            "fontWeight": 600,
            "subtitleColor": faint,
            "subtitleFontSize": NORMAL,
            "subtitlePadding": 5,
            "offset": 12,
        },
        "axis": {
            "labelColor": faint,
            "titleColor": faint,
            "labelFontSize": SMALL,
            "titleFontSize": SMALL,
            "titleFontWeight": "normal",
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
        },
        "legend": {
            "labelColor": text,
            "titleColor": faint,
            "labelFontSize": NORMAL,
            "titleFontSize": SMALL,
            "titleFontWeight": "normal",
            "symbolSize": 110,
            "symbolStrokeWidth": 0,
            "labelLimit": 320,
            "columnPadding": 18,
            "rowPadding": 4,
        },
        "text": {"color": text, "fontSize": SMALL},
        "view": {"stroke": None},
    }


def in_stack_order(categories: Iterable[Category]) -> list[Category]:
    """The categories as a stack shows them."""
    found = set(categories)
    return [category for category in STACK if category in found]


def colours(labels: Mapping[Category, str], theme: Theme, *, columns: int = 4, room: int = 100) -> Spec:
    """The colour channel for a field `category` that holds the labels; its legend stands below, in the order of the stack. `room` points of
    the drawing's width go to a column: where a page makes the picture narrow, there are fewer."""
    order = in_stack_order(labels)
    columns_that_fit = fitted(f"clamp(floor(width / {room}), 1, {columns})", columns)
    return {
        "field": "category",
        "type": "nominal",
        "title": None,
        "sort": None,
        "scale": {"domain": [labels[c] for c in order], "range": [CATEGORY_COLOUR[c].on(theme) for c in order]},
        "legend": {"orient": "bottom", "direction": "horizontal", "columns": columns_that_fit, "symbolType": "square"},
    }


def fitted(expression: str, usual: float) -> Spec:
    """A number that follows the width at which a page shows the picture. Where several pictures are one there is no such width, and the usual number holds."""
    return {"expr": f"width > 0 ? {expression} : {usual}"}


def plain_labels(categories: Iterable[Category]) -> dict[Category, str]:
    """Labels without sizes."""
    return {category: category_label(category) for category in categories}


RIM: Spec = {"field": "rim", "type": "quantitative", "scale": None, "legend": None}
"""The stroke width channel of segments: a rim of the background's colour, where the segment is thick enough to keep its own."""
THIN = 3
"""Points below which a segment has no rim."""


def rim(points: float) -> float:
    """The width of the rim of a segment that is so many points thick."""
    return 1 if points >= THIN else 0


def halo(theme: Theme) -> Spec:
    """The mark of a text's rim, drawn below the text itself, so that it can be read over lines."""
    return {"color": BACKGROUND.on(theme), "stroke": BACKGROUND.on(theme), "strokeWidth": 4, "strokeJoin": "round"}


def size_axis(**changes: Any) -> Spec:
    """An axis of sizes: every number with its unit."""
    return {"title": None, "labelExpr": "datum.label + ' GiB'", "tickCount": 6, **changes}


def gib(size: float) -> float:
    """Bytes as GiB for a scale; six digits are finer than a pixel and keep a picture small."""
    return float(f"{size / GiB:.6g}")


def exact(size: int) -> str:
    """`15.11 GiB (16,224,092,160 bytes)`: a size for tooltips."""
    return f"{short_size(size, digits=2)} ({size:,} bytes)"


def tooltip(*fields: tuple[str, str]) -> list[Spec]:
    """Tooltip rows of (field, title)."""
    return [{"field": field, "type": "nominal", "title": said(title)} for field, title in fields]


def together(pictures: Sequence[Spec]) -> Spec:
    """Several pictures one below the other as one; their legends and scales stay their own."""
    first = pictures[0]
    shared = ("$schema", "description", "background", "padding", "config")
    inner = [{key: value for key, value in one.items() if key not in shared} for one in pictures]
    return {
        "$schema": first["$schema"],
        "description": " ".join(one["description"] for one in pictures),
        "background": first["background"],
        "padding": first["padding"],
        "spacing": 36,
        "vconcat": inner,
        "resolve": {"scale": {"color": "independent"}},
        "config": first["config"],
    }

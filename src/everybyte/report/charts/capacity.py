"""The line at what the device holds. Its label is an axis of its own beside the drawing, so that it meets neither bars nor other labels."""

from __future__ import annotations

from everybyte.report.charts.spec import SMALL, Spec, gib
from everybyte.report.language import said
from everybyte.report.palette import CAPACITY, Theme
from everybyte.report.words import short_size

WORD = "capacity"


def across(capacity: int, theme: Theme) -> Spec:
    """A level line through a picture whose sizes go upwards, its label at the right. Its layer's axis must be independent (`APART`)."""
    axis = {**_axis(capacity, theme), "orient": "right", "labelExpr": f"['{said(WORD)}', '{short_size(capacity)}']", "labelAlign": "left"}
    return _line(capacity, theme, {"y": {"field": "at", "type": "quantitative", "axis": axis}})


def upright(capacity: int, theme: Theme) -> Spec:
    """An upright line through a picture whose sizes go to the right, its label above it."""
    axis = {**_axis(capacity, theme), "orient": "top", "labelExpr": f"'{said(WORD)} {short_size(capacity)}'", "labelAlign": "right", "labelOffset": 4}
    return _line(capacity, theme, {"x": {"field": "at", "type": "quantitative", "axis": axis}})


APART: Spec = {"axis": {"x": "independent", "y": "independent"}}
"""How the layers of a picture with a line share: one scale, but an axis each. Layers without an axis of their own say so with None."""


def _axis(capacity: int, theme: Theme) -> Spec:
    return {
        "values": [gib(capacity)],
        "title": None,
        "grid": False,
        "ticks": False,
        "domain": False,
        "labelColor": CAPACITY.on(theme),
        "labelFontWeight": 600,
        "labelFontSize": SMALL,
        "labelOverlap": False,
        "labelBound": False,
        "labelFlush": False,
        "labelPadding": 5,
    }


def _line(capacity: int, theme: Theme, encoding: Spec) -> Spec:
    return {
        "data": {"values": [{"at": gib(capacity)}]},
        "mark": {"type": "rule", "color": CAPACITY.on(theme), "strokeWidth": 1.5, "strokeDash": [6, 4]},
        "encoding": encoding,
    }

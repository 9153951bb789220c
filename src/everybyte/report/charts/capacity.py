"""The line at what the device holds."""

from __future__ import annotations

from everybyte.report.charts.spec import SMALL, WIDTH, Spec, gib
from everybyte.report.palette import BACKGROUND, CAPACITY, Theme
from everybyte.report.words import short_size


def across(capacity: int, theme: Theme) -> list[Spec]:
    """A level line through a picture whose sizes go upwards, its label at the right end above it."""
    data = {"values": [{"at": gib(capacity), "words": f"capacity {short_size(capacity)}"}]}
    y: Spec = {"field": "at", "type": "quantitative"}
    line = {"data": data, "mark": {"type": "rule", "color": CAPACITY.on(theme), "strokeWidth": 1.5, "strokeDash": [6, 4]}, "encoding": {"y": y}}
    return [line, *_words(data, {"x": {"value": WIDTH}, "y": y}, {"align": "right", "dy": -8, "dx": -2}, theme)]


def upright(capacity: int, theme: Theme) -> list[Spec]:
    """An upright line through a picture whose sizes go to the right, its label above the drawing."""
    data = {"values": [{"at": gib(capacity), "words": f"capacity {short_size(capacity)}"}]}
    x: Spec = {"field": "at", "type": "quantitative"}
    line = {"data": data, "mark": {"type": "rule", "color": CAPACITY.on(theme), "strokeWidth": 1.5, "strokeDash": [6, 4]}, "encoding": {"x": x}}
    return [line, *_words(data, {"x": x, "y": {"value": 0}}, {"align": "right", "dy": -7, "dx": 2}, theme)]


def _words(data: Spec, place: Spec, mark: Spec, theme: Theme) -> list[Spec]:
    """The label with a rim of the background, so that it is read over anything."""
    common = {"type": "text", "fontWeight": 600, "fontSize": SMALL, **mark}
    encoding = {**place, "text": {"field": "words"}}
    rim = {"data": data, "mark": {**common, "color": BACKGROUND.on(theme), "stroke": BACKGROUND.on(theme), "strokeWidth": 4}, "encoding": encoding}
    return [rim, {"data": data, "mark": {**common, "color": CAPACITY.on(theme)}, "encoding": encoding}]

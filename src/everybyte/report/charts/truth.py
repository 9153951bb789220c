"""Picture (f): predicted against measured, for the records of real runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from everybyte.basics.units import GiB
from everybyte.measure.accuracy import Comparison, quantile
from everybyte.report.charts.spec import Row, Spec, picture, tooltip
from everybyte.report.palette import BACKGROUND, FAINT_TEXT, KINDS, Theme
from everybyte.report.words import COUNTS, SPEEDS, short_size

SIDE = 460
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
OTHERS = "others"
BAND = 0.10
"""The dashed lines are so far from the diagonal."""


def truth(comparisons: Sequence[Comparison], theme: Theme = "light", figure: str | None = None) -> Spec:
    """Each answered figure in bytes as a point: measured to the right, predicted upwards, both by doublings. On the diagonal the prediction is right.

    `figure` keeps one figure (`peak.allocated`). The kind of run, the first word of a group's name, has a colour and a shape.
    """
    chosen = [c for c in comparisons if _is_size(c) and figure in (None, c.figure)]
    kinds = _kinds(chosen)
    data = [_row(c, kinds) for c in chosen]
    ends = [value for row in data for value in (row["measured"], row["predicted"])] or [1.0, 2.0]
    low, high = min(ends) / 1.3, max(ends) * 1.3
    scale: Spec = {"type": "log", "base": 2, "domain": [low, high], "nice": False}
    words = "datum.value < 1 ? format(datum.value * 1024, ',~r') + ' MiB' : format(datum.value, ',~r') + ' GiB'"
    axis = {"tickCount": 8, "labelExpr": words, "labelOverlap": True, "labelSeparation": 6}
    kind: Spec = {"field": "kind", "type": "nominal", "title": None, "sort": None, "legend": {"orient": "right"}}
    points = {
        "data": {"values": data},
        "mark": {"type": "point", "filled": True, "size": 36, "opacity": 0.7, "stroke": BACKGROUND.on(theme), "strokeWidth": 0.5},
        "encoding": {
            "x": {"field": "measured", "type": "quantitative", "title": "measured", "scale": scale, "axis": axis},
            "y": {"field": "predicted", "type": "quantitative", "title": "predicted", "scale": scale, "axis": axis},
            "color": {**kind, "scale": {"domain": kinds, "range": [c.on(theme) for c in KINDS]}},
            "shape": {**kind, "scale": {"domain": kinds, "range": list(SHAPES)}},
            "tooltip": tooltip(("id", "record"), ("group", "group"), ("figure", "figure"), ("was", "measured"), ("said", "predicted"), ("error", "error")),
        },
    }
    errors = sorted(abs(c.error) for c in chosen if c.error is not None)
    return picture(
        {"width": SIDE, "height": SIDE, "layer": [*_lines(low, high, theme), points]},
        title=_title(errors, figure),
        subtitle=f"{len(data):,} figures of {len({c.id for c in chosen}):,} runs · dashed: 10 % too high, 10 % too low",
        description=_description(errors, chosen, figure),
        theme=theme,
    )


def _is_size(c: Comparison) -> bool:
    return c.predicted is not None and c.predicted > 0 and c.measured > 0 and c.figure not in COUNTS and c.figure not in SPEEDS


def _kinds(chosen: Iterable[Comparison]) -> list[str]:
    """The kinds with most points, by name; all others are one."""
    counted = Counter(_kind(c) for c in chosen)
    kept = [kind for kind, _ in counted.most_common(len(SHAPES) - 1)]
    return [*sorted(kept), OTHERS] if len(counted) > len(kept) else sorted(kept)


def _kind(c: Comparison) -> str:
    return c.group.partition("-")[0]


def _row(c: Comparison, kinds: Sequence[str]) -> Row:
    kind = _kind(c)
    assert c.predicted is not None
    return {
        "id": c.id,
        "group": c.group,
        "figure": c.figure,
        "kind": kind if kind in kinds else OTHERS,
        "measured": float(f"{c.measured / GiB:.5g}"),
        "predicted": float(f"{c.predicted / GiB:.5g}"),
        "was": short_size(round(c.measured), digits=2),
        "said": short_size(round(c.predicted), digits=2),
        "error": "" if c.error is None else f"{100 * c.error:+.2f} %",
    }


def _lines(low: float, high: float, theme: Theme) -> list[Spec]:
    """The diagonal, and a dashed line on either side."""
    out = []
    for factor, dash in ((1 - BAND, [3, 3]), (1, []), (1 + BAND, [3, 3])):
        start, end = max(low, low / factor), min(high, high / factor)
        ends = [{"m": start, "p": start * factor}, {"m": end, "p": end * factor}]
        out.append(
            {
                "data": {"values": ends},
                "mark": {"type": "line", "color": FAINT_TEXT.on(theme), "strokeWidth": 1, **({"strokeDash": dash} if dash else {})},
                "encoding": {"x": {"field": "m", "type": "quantitative"}, "y": {"field": "p", "type": "quantitative"}},
            }
        )
    return out


def _title(errors: list[float], figure: str | None) -> str:
    name = figure or "All sizes"
    if not errors:
        return f"{name}: nothing to compare"
    return f"{name}: median error {100 * quantile(errors, 0.5):.1f} %, 90th percentile {100 * quantile(errors, 0.9):.0f} %"


def _description(errors: list[float], chosen: Sequence[Comparison], figure: str | None) -> str:
    near = sum(error <= BAND for error in errors)
    of = f" of {figure}" if figure else ""
    return f"Predicted against measured sizes{of}: {len(chosen):,} figures, {near:,} of them within 10 %. {_title(errors, figure)}."

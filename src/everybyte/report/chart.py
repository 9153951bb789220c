"""A chart of an answer: bytes by category in each phase against the capacity, as a Vega-Lite specification drawn to SVG, PNG or HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.basics.units import GiB
from everybyte.ledger.answer import Answer
from everybyte.ledger.entry import CATEGORIES
from everybyte.report.words import CATEGORY_COLOUR, spoken

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
ENDINGS = (".svg", ".png", ".html")
PNG_SCALE = 2
"""Pixels a point: sharp on today's screens."""


def write_chart(answer: Answer, path: str) -> None:
    """Draws the answer to `path`, as its ending says. Raises BadInput for another ending or a file that cannot be written, MissingExtra without vl-convert."""
    target = Path(path)
    ending = target.suffix.casefold()
    if ending not in ENDINGS:
        raise BadInput("--chart", f"a chart is written as {', '.join(ENDINGS)}, not as {ending or path!r}")
    drawn = _draw(chart_spec(answer), ending)
    try:
        target.write_bytes(drawn)
    except (OSError, ValueError) as error:
        raise BadInput("--chart", f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _draw(spec: dict[str, Any], ending: str) -> bytes:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("drawing charts", "charts") from None
    if ending == ".png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
    text: str = vl_convert.vegalite_to_svg(spec) if ending == ".svg" else vl_convert.vegalite_to_html(spec, bundle=True)
    return text.encode()


def chart_spec(answer: Answer) -> dict[str, Any]:
    """The Vega-Lite specification: a stacked bar for each phase, and a line at the capacity where a GPU is named."""
    phases = [spoken(phase.name) for phase in answer.worst.phases]
    used = [category for category in CATEGORIES if any(entry.category == category for entry in answer.worst.ledger)]
    bars = {
        "data": {"values": _rows(answer)},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": "phase", "type": "nominal", "sort": phases, "title": None, "axis": {"labelAngle": 0}},
            "y": {"field": "gib", "type": "quantitative", "title": "GiB"},
            "color": {
                "field": "category",
                "title": None,
                "scale": {"domain": [spoken(c) for c in used], "range": [CATEGORY_COLOUR[c] for c in used]},
            },
            "order": {"field": "order", "type": "quantitative"},
        },
    }
    layers: list[dict[str, Any]] = [bars]
    if answer.hardware is not None:
        capacity = {"data": {"values": [{"gib": answer.hardware.capacity / GiB}]}, "encoding": {"y": {"field": "gib", "type": "quantitative"}}}
        layers.append({**capacity, "mark": {"type": "rule", "strokeDash": [6, 4], "size": 2}})
    title = {"text": answer.name or answer.model.name, "subtitle": _subtitle(answer), "anchor": "start"}
    return {"$schema": SCHEMA, "title": title, "width": 90 * len(phases), "height": 320, "layer": layers}


def _rows(answer: Answer) -> list[dict[str, Any]]:
    rows = []
    for phase in answer.worst.phases:
        for order, category in enumerate(CATEGORIES):
            size = sum(e.bytes for e in answer.worst.ledger if phase.name in e.phases and e.category == category)
            if size:
                rows.append({"phase": spoken(phase.name), "category": spoken(category), "order": order, "gib": size / GiB, "bytes": size})
    return rows


def _subtitle(answer: Answer) -> str:
    if answer.hardware is None:
        return "no GPU named"
    outcome = "fits" if answer.fits else "does not fit"
    return f"{outcome} in the {answer.hardware.capacity / GiB:.1f} GiB of {answer.hardware.gpu}"

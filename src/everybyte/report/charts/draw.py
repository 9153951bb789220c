"""A picture as a file, without a browser."""

from __future__ import annotations

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.report.charts.spec import Spec

ENDINGS = (".svg", ".png")
PNG_SCALE = 2
"""Pixels a point: sharp on today's screens."""
VEGA_LITE = "5.21"
"""The pictures are written in version 5; a newer compiler would read them as its own."""


def draw(spec: Spec, ending: str) -> bytes:
    """The picture as `.svg` or `.png`. Raises BadInput for another ending, MissingExtra without vl-convert."""
    if ending not in ENDINGS:
        raise BadInput("--chart", f"a picture is drawn as {' or '.join(ENDINGS)}, not as {ending!r}")
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("drawing charts", "charts") from None
    # No address may be read: all data are inline.
    if ending == ".png":
        return bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=PNG_SCALE, allowed_base_urls=[]))
    text: str = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    return text.encode()

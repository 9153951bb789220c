"""`everybyte trace --export FILE`: a trace as a file, for people and for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from everybyte.basics.errors import BadInput
from everybyte.ledger.answer import Answer
from everybyte.trace.asked import Traced
from everybyte.trace.export import as_json
from everybyte.trace.timeline import Timeline


def write_trace(traced: Traced, answer: Answer, path: str) -> None:
    """Writes a trace as the ending of `path` says. Raises BadInput for another ending or a file that cannot be written, MissingExtra without vl-convert."""
    target = Path(path)
    write = _WRITERS.get(target.suffix.casefold())
    if write is None:
        raise BadInput("--export", f"a trace is written as {', '.join(_WRITERS)}, not as {target.suffix or path!r}")
    content = write(traced, answer)
    try:
        target.write_bytes(content)
    except (OSError, ValueError) as error:
        raise BadInput("--export", f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _page(traced: Traced, answer: Answer) -> bytes:
    from everybyte.report.html.traced import traced_page

    return traced_page(answer, Timeline(traced)).encode()


def _picture(ending: str) -> Callable[[Traced, Answer], bytes]:
    def draw_course(traced: Traced, answer: Answer) -> bytes:
        from everybyte.report.charts import draw
        from everybyte.report.charts.course import course

        capacity = answer.hardware.capacity if answer.hardware else None
        return draw(course(Timeline(traced), answer.name, capacity), ending)

    return draw_course


_WRITERS: dict[str, Callable[[Traced, Answer], bytes]] = {
    ".html": _page,
    ".json": lambda traced, _: as_json(traced),
    ".png": _picture(".png"),
    ".svg": _picture(".svg"),
}

"""`everybyte trace --export FILE`: a trace as a file, for people and for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from everybyte.allocator.settings import AllocatorSettings
from everybyte.basics.errors import BadInput
from everybyte.ledger.answer import Answer
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import Traced
from everybyte.trace.results.export import as_json
from everybyte.trace.results.snapshot import snapshot

Writer = Callable[[Traced, Answer, AllocatorSettings], bytes]


def write_trace(traced: Traced, answer: Answer, path: str, settings: AllocatorSettings) -> None:
    """Writes a trace as the ending of `path` says. Raises BadInput for another ending or a file that cannot be written, MissingExtra without vl-convert."""
    target = Path(path)
    write = _WRITERS.get(target.suffix.casefold())
    if write is None:
        raise BadInput("--export", f"a trace is written as {', '.join(_WRITERS)}, not as {target.suffix or path!r}")
    content = write(traced, answer, settings)
    try:
        target.write_bytes(content)
    except (OSError, ValueError) as error:
        raise BadInput("--export", f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _page(traced: Traced, answer: Answer, settings: AllocatorSettings) -> bytes:
    from everybyte.report.html.traced import traced_page

    return traced_page(answer, Timeline(traced, settings)).encode()


def _picture(ending: str) -> Writer:
    def draw_course(traced: Traced, answer: Answer, settings: AllocatorSettings) -> bytes:
        from everybyte.report.charts import draw
        from everybyte.report.charts.course import course

        capacity = answer.hardware.capacity if answer.hardware else None
        return draw(course(Timeline(traced, settings), answer.name, capacity), ending)

    return draw_course


_WRITERS: dict[str, Writer] = {
    ".html": _page,
    ".json": lambda traced, *_: as_json(traced),
    ".pickle": lambda traced, _, settings: snapshot(traced, settings),
    ".png": _picture(".png"),
    ".svg": _picture(".svg"),
}

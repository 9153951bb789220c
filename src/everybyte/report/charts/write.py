"""`--chart FILE`: pictures of an answer as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.ledger.answer import Answer
from everybyte.report.charts.card import card
from everybyte.report.charts.draw import ENDINGS, draw
from everybyte.report.charts.knob import knob
from everybyte.report.charts.phases import phases
from everybyte.report.charts.places import places
from everybyte.report.charts.ranks import ranks
from everybyte.report.charts.spec import Spec, together

if TYPE_CHECKING:
    from everybyte.job import Job

REPORT = ".html"
PICTURES = ("card", "phases", "ranks", "places", "knob:KEY")


def write_chart(answer: Answer, job: Job, path: str, name: str | None = None) -> None:
    """Draws an answer to `path`, as its ending says: a picture, or the whole report.

    `name` asks for one picture (`PICTURES`); without it the card stands above the phases, and the kinds of rank where there are several. Raises BadInput
    for another ending or name and for a file that cannot be written, MissingExtra without vl-convert.
    """
    target = Path(path)
    ending = target.suffix.casefold()
    if ending not in (*ENDINGS, REPORT):
        raise BadInput("--chart", f"a chart is written as {', '.join((*ENDINGS, REPORT))}, not as {ending or path!r}")
    if ending == REPORT:
        from everybyte.report.html import report

        if name is not None:
            raise BadInput("--picture", "chooses a picture for .svg and .png; the report has all of them")
        written = report(answer, job).encode()
    else:
        written = draw(_asked(answer, job, name), ending)
    try:
        target.write_bytes(written)
    except (OSError, ValueError) as error:
        raise BadInput("--chart", f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _asked(answer: Answer, job: Job, name: str | None) -> Spec:
    if name is None:
        return together([card(answer), phases(answer), *([ranks(answer)] if len(answer.ranks) > 1 else [])])
    pictures = {"card": card, "phases": phases, "places": places}
    if name in pictures:
        return pictures[name](answer)
    if name == "ranks":
        return ranks(answer)
    kind, _, key = name.partition(":")
    if kind == "knob":
        from everybyte.plan.sweep import sweep

        if not key:
            raise BadInput("--picture", "knob needs a setting, such as knob:micro_batch")
        return knob(sweep(job, key))
    raise BadInput("--picture", f"there is no picture {name!r}{did_you_mean(name, PICTURES)}; there are {', '.join(PICTURES)}")

"""The page of a trace: one HTML file with the course of the program, its largest storages and its ledger, which opens offline."""

from __future__ import annotations

from everybyte.ledger.answer import Answer
from everybyte.report.charts import card
from everybyte.report.charts.course import course
from everybyte.report.html.ledger import ledger_section
from everybyte.report.html.page import document, head_of
from everybyte.report.html.pictures import figure
from everybyte.report.html.tags import Html, bullets, element, joined, table
from everybyte.report.sums import outcome
from everybyte.report.words import FIGURE_MEANING, short_size, spoken
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import BirthRow

MOST_ROWS = 40


def traced_page(answer: Answer, timeline: Timeline) -> str:
    """The page. Raises MissingExtra without vl-convert."""
    capacity = answer.hardware.capacity if answer.hardware else None
    sections = [
        ("Pictures", "pictures", joined(figure(lambda theme: course(timeline, answer.name, capacity, theme)), figure(lambda theme: card(answer, theme=theme)))),
        ("Figures", "figures", _figures(answer)),
        ("Largest at the peak", "largest", _largest(timeline)),
        ("Ledger", "ledger", ledger_section(answer)),
        ("Assumed", "assumed", bullets(list(answer.assumptions)) if answer.assumptions else Html()),
    ]
    return document(f"{answer.name}: {outcome(answer)}", head_of(answer), sections)


def _figures(answer: Answer) -> Html:
    rows: list[list[object]] = [
        [element("code", name), short_size(int(value), digits=2), FIGURE_MEANING.get(name, "")] for name, value in answer.figures.items()
    ]
    return table(["Figure", "Traced", "Meaning"], rows, class_="figures")


def _largest(timeline: Timeline) -> Html:
    """The largest storages that live at the peak of the last step: what made them, where, and the program's line."""
    position = max(timeline.peaks.values())[1]
    living = sorted(timeline.living(position).items(), key=lambda item: -item[1])
    rows = [_row(timeline, timeline.births[number], size) for number, size in living[:MOST_ROWS]]
    rest = living[MOST_ROWS:]
    more = element("p", f"and {len(rest):,} more with {short_size(sum(size for _, size in rest), digits=2)}") if rest else Html()
    return joined(table(["Made by", "Size", "Category", "Module", "Shape", "Line"], rows), more)


def _row(timeline: Timeline, birth: BirthRow, size: int) -> list[object]:
    shape = f"{birth.dtype} {list(birth.shape)}" if birth.shape else birth.dtype
    made = element("code", birth.operation.removeprefix("aten."))
    return [made, short_size(size, digits=2), spoken(timeline.category_of(birth)), birth.module, shape, element("code", birth.line)]

"""The figures with their ranges and where the ranges come from, and the kinds of rank."""

from __future__ import annotations

from everybyte.catalog.ranges import spread
from everybyte.engines.registry import kind_of
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.report.estimate import figure_text
from everybyte.report.html.tags import Html, element, joined, table
from everybyte.report.sums import rank_needs
from everybyte.report.words import COUNTS, SPEEDS, TORCH_FIGURES, figure_meaning, short_size, spoken


def figures_section(answer: Answer, job: Job) -> Html:
    """A row for each figure; torch's three stand first and are not added."""
    names = [*(name for name in TORCH_FIGURES if name in answer.figures), *(name for name in answer.figures if name not in TORCH_FIGURES)]
    rows: list[list[object]] = [
        [element("code", name), _amount(name, answer.figures[name]), *_range(answer, job, name), figure_meaning(name, answer.job)] for name in names
    ]
    about = element(
        "p",
        "The 90 % interval is where nine of ten measured values are expected. It is learnt from the errors of measured runs, those of the same kind first; "
        "everybyte truth lists them. A figure without an interval has no measured runs, or was given.",
    )
    first = table(["Figure", "Predicted", "90 % interval", "Learnt from", "Meaning"], rows, class_="figures")
    return joined(first, about, _ranks(answer))


def _amount(name: str, value: float) -> str:
    text = figure_text(name, value, "GiB")
    return text if name in COUNTS or name in SPEEDS or text.endswith(" B") else f"{text} GiB"


def _range(answer: Answer, job: Job, name: str) -> tuple[str, str]:
    """The range, and the runs behind it."""
    if name not in answer.range:
        return "", ""
    found = spread(name, kind_of(job))
    low, high = answer.range[name]
    between = "exact" if low == high else f"{_amount(name, low)} – {_amount(name, high)}"
    return between, f"{found.runs:,} runs in {found.groups:,} sources" if found else ""


def _ranks(answer: Answer) -> Html:
    if len(answer.ranks) == 1:
        return Html()
    rows: list[list[object]] = [
        [rank.label, f"{rank.gpus:,}", short_size(rank_needs(answer, rank), digits=2), spoken(rank.peak_phase), _headroom(answer, rank_needs(answer, rank))]
        for rank in answer.ranks
    ]
    return joined(element("h3", "Rank types"), table(["Rank type", "GPUs", "Needs", "Peak in", "GPU memory left"], rows))


def _headroom(answer: Answer, needs: int) -> str:
    return "" if answer.hardware is None else short_size(answer.hardware.capacity - needs, digits=2)

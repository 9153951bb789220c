"""The rows of answers whose size was fitted to measured runs, with the runs that tell of them: a part of the page of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, quantile
from writers.markdown import table

DECIDES = {
    ("serve", "graphs"): "cuda_graphs",
    ("serve", "non_torch"): "non_torch",
    ("serve", "activation"): "activation_peak",
    ("train", "context"): "peak.device",
    ("train", "pipeline"): "peak.allocated",
}
"""The figure that a fitted row decides, by section and the first word of its id."""

HEAD = """\\
## Constants that are fitted

Rows marked `calibrated` hold a number that no documentation states: it was fitted to measured runs, so the errors of the figure that it decides are not
those of a run that nobody looked at. These are the rows, the measured runs in which they stand, and how far their figure was off there."""


class Row(NamedTuple):
    """One fitted row of one record."""

    record: str
    section: str
    id: str
    source: str


def rows_of(record: str, section: str, answer: Answer) -> set[Row]:
    """The fitted rows of an answer, each once."""
    found = (entry for rank in answer.ranks for entry in rank.ledger if entry.basis == "calibrated")
    return {Row(record, section, entry.id, entry.source) for entry in found}


def fitted(rows: Sequence[Row], comparisons: Sequence[Comparison]) -> str:
    """A table with a line for each fitted row whose figure some record measures."""
    errors = {(c.id, c.figure): (abs(c.error), c.group) for c in comparisons if c.error is not None}
    lines = []
    for section, name in sorted({(row.section, row.id) for row in rows}):
        figure = DECIDES.get((section, name.partition("/")[0]))
        own = [row for row in rows if (row.section, row.id) == (section, name)]
        found = [errors[row.record, figure] for row in own if figure and (row.record, figure) in errors]
        if found:
            sizes = [size for size, _ in found]
            shown = [f"{100 * size:.1f} %" for size in (quantile(sizes, 0.5), quantile(sizes, 0.9))]
            source = min(own).source.replace("|", "\\\\|")
            lines.append((f"`{name}`", f"`{figure}`", str(len(found)), str(len({group for _, group in found})), *shown, source))
    return table(("row", "figure", "runs", "groups", "median", "p90", "what is fitted, and to what"), lines, "llrrrrl")

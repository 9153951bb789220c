"""The page of the figures: names, units, meanings, and whose answers have them."""

from __future__ import annotations

from everybyte.measure.accuracy import quantile
from everybyte.report.words import COUNTS, FIGURE_MEANING
from writers.markdown import page, table
from writers.measured import Measured

INTRODUCTION = """\
The names in `figures` of an answer, in `given` of a job and in measured runs. A figure that a framework has no such thing for is left out, never zero.
Sizes are bytes in files, and GiB where people read them."""
UNITS = {
    "kv.tokens": "tokens",
    "kv.blocks": "pages",
    "kv.block_size": "tokens a page",
    "kv.concurrency": "sequences",
    "kv.bytes_per_token": "bytes a token",
}
KNOWN_BY = """\
## Who has which

Collected from the answers to all measured runs that ship with the package; a figure may need a setting, such as a model with sliding windows."""


def figures_page(measured: Measured) -> str:
    """Each figure with unit and meaning, and the median error where runs tell."""
    rows = [(f"`{name}`", unit(name), meaning, error(measured, name)) for name, meaning in FIGURE_MEANING.items()]
    names = sorted({name for figures in measured.figures.values() for name in figures if name in FIGURE_MEANING}, key=list(FIGURE_MEANING).index)
    holders = [(f"`{name}`", ", ".join(sorted(engine for engine, figures in measured.figures.items() if name in figures))) for name in names]
    return page(
        "Figures",
        INTRODUCTION,
        table(("figure", "unit", "meaning", "median error"), rows, "lllr"),
        "Errors are those of [the measured runs](../accuracy.md); a figure without one has not been measured in a run that we know.",
        KNOWN_BY,
        table(("figure", "frameworks and engines"), holders),
    )


def unit(name: str) -> str:
    """bytes, tokens and so on."""
    if name.endswith("tokens_per_s"):
        return "tokens/s"
    units = {
        "kv.tokens": "tokens",
        "kv.blocks": "pages",
        "kv.block_size": "tokens a page",
        "kv.concurrency": "sequences",
        "kv.bytes_per_token": "bytes a token",
    }
    assert name not in COUNTS or name in units, f"{name} is no size and has no unit here"
    return units.get(name, "bytes")


def error(measured: Measured, name: str) -> str:
    """The median error over all runs."""
    errors = [abs(c.error) for c in measured.comparisons if c.figure == name and c.error is not None]
    return f"{100 * quantile(errors, 0.5):.2f} % of {len(errors)}" if errors else ""

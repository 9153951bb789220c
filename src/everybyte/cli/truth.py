"""`everybyte truth`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.cli.ending import FITS, unexpected
from everybyte.cli.options import as_json
from everybyte.cli.progress import Progress

if TYPE_CHECKING:
    from everybyte.ledger.answer import Answer
    from everybyte.measure.accuracy import Comparison, Record, Wanted

ALL = ".*"
Compared = tuple[list["Comparison"], list["Comparison"] | None]
"""Our comparisons, and those of the textbook where they are asked for."""


@click.command()
@click.option("--group", metavar="REGEX", default=ALL, help="Only groups whose whole name matches.")
@click.option("--figure", metavar="REGEX", default=ALL, help="Only figures whose whole name matches: peak.allocated, peak\\..*")
@click.option("--against", type=click.Choice(["textbook"]), help="Also the errors of the textbook equations on the same records.")
@click.option("--worst", metavar="N", type=click.IntRange(min=0), default=0, help="Also list the N largest errors, and why records are not answered.")
@click.option("--recompute", is_flag=True, help="Estimate every record anew instead of reading the table of this release. Takes a minute or more.")
@as_json
def command(group: str, figure: str, against: str | None, worst: int, recompute: bool, as_json: bool) -> int:
    """Compare predictions with the shipped records of measured runs, by group and figure.

    median and p90 are of the absolute error, bias is the mean error; "in range" is the share of measured values inside the 90 % interval, width
    the median width of that as a share of the prediction. "fresh sources" came after the rules, and none was read off them.

    \b
    everybyte truth
    everybyte truth --group 'fms-.*' --figure peak.allocated --worst 10
    everybyte truth --against textbook
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.measure.accuracy import Wanted, fresh_of, summarise, summary_of

    wanted = Wanted(_matcher(group, "--group"), _matcher(figure, "--figure"))
    ours, textbook = (_computed if recompute else _shipped)(wanted, against is not None)
    if not ours:
        raise BadInput("--group", f"no record matches group {group!r} and figure {figure!r}")
    theirs = [*summarise(textbook), summary_of("all", "", textbook)] if textbook is not None else None
    if as_json:
        from everybyte.report.as_json import line, truth_object

        click.echo(line(truth_object(ours, theirs, ours if worst else [])))
        return FITS
    from everybyte.report.console import open_console
    from everybyte.report.truth import show_truth, show_worst

    console = open_console()
    totals = [total for total in (fresh_of(ours), summary_of("all", "", ours)) if total is not None]
    show_truth(console, summarise(ours), totals, None if theirs is None else {(s.group, s.figure): s for s in theirs})
    if worst:
        console.print()
        show_worst(console, ours, worst)
    return FITS


def _shipped(wanted: Wanted, beside: bool) -> Compared:
    """What the table of this release says; `beside` also of the textbook."""
    from everybyte.measure.shipped import chosen, shipped

    table = shipped()
    return chosen(table.ours, wanted), chosen(table.textbook, wanted) if beside else None


def _computed(wanted: Wanted, beside: bool) -> Compared:
    """The same, estimated anew."""
    from everybyte.measure.accuracy import select
    from everybyte.measure.truth import load_records

    records = select(load_records(), wanted)
    ours = _compare_all(records, wanted, _predict, "answering records")
    return ours, _compare_all(records, wanted, predict_by_textbook, "answering by the textbook") if beside else None


def _matcher(pattern: str, option: str) -> Callable[[str], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadInput(option, f"{pattern!r} is not a regular expression: {error}") from None
    return lambda text: compiled.fullmatch(text) is not None


def _compare_all(records: list[Record], wanted: Wanted, predict: Callable[[dict[str, Any]], Answer], what: str) -> list[Comparison]:
    from everybyte.measure.accuracy import compare

    out = []
    with Progress(what, len(records)) as progress:
        for record in records:
            out += compare(record, wanted, predict)
            progress.advance()
    return out


def _predict(job: dict[str, Any]) -> Answer:
    """The answer to a record's job. A fault of the program counts as unanswered, with its place, and the other records go on."""
    from everybyte.estimator import estimate

    try:
        return estimate(job)
    except EverybyteError:
        raise
    except Exception as fault:
        raise EverybyteError(unexpected(fault)) from fault


def predict_by_textbook(job: dict[str, Any]) -> Answer:
    """The answer of the published equations to the same training job. Raises Unsupported for serving jobs, of which they know no engine."""
    from everybyte.basics.errors import Unsupported

    if "train" not in job:
        raise Unsupported("train.framework", "the textbook has equations for training steps only")
    return _predict({**job, "train": {**job["train"], "framework": "textbook"}})

"""`everybyte compare A B`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json, unit

if TYPE_CHECKING:
    from everybyte.ledger.answer import Answer
    from everybyte.measure.comparing.side import Side
    from everybyte.plan.suspects import Suspect


@click.command(no_args_is_help=True)
@click.argument("a")
@click.argument("b")
@click.option("--rank", metavar="LABEL", help="Rank type of A, by label.  [default: the one with the highest peak]")
@click.option("--against", metavar="LABEL", help="Rank type of B, by label, or device of a snapshot.  [default: the one with the highest peak]")
@unit
@as_json
def command(a: str, b: str, rank: str | None, against: str | None, unit: str, as_json: bool) -> int:
    """Compare A and B row by row, the largest difference first, each with its reason.

    A and B are job files, answers that `estimate --json` or `trace --json` printed into a file, memory snapshots, records that `record` wrote, or logs of a
    start or a training run. Rows are compared where both sides have them: by place, by category, or figures alone.

    \b
    everybyte compare zero2.yaml zero3.yaml
    everybyte trace train.py:build --json > traced.json
    everybyte compare job.yaml traced.json
    everybyte compare job.yaml snapshot.pickle
    everybyte compare job.yaml train.log

    Where A is a job, one of its settings is changed at a time and the job estimated again: the change that brings it nearest to B is named.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.measure.comparing.open import opened
    from everybyte.measure.comparing.rows import compared
    from everybyte.report.console import open_console
    from everybyte.report.differences import told_apart

    (here, answer), (there, other) = opened(a, rank, "--rank"), opened(b, against, "--against")
    found = compared(here, there)
    if found.detail == "figure" and not found.figures:
        known = ", ".join(there.figures) or "none"
        raise BadInput(b, f"has no figure in common with {a}: it states {known}")
    guilty = named(answer, there) if not rank else ()
    labels = (_label(answer, rank), _label(other, against))
    if as_json:
        from everybyte.report.as_json import line
        from everybyte.report.comparison import comparison_object

        click.echo(line({**_as_before(answer, other, rank, against), **comparison_object(found, guilty)}))
        return FITS
    from everybyte.report.comparison import show_comparison

    show_comparison(open_console(), found, unit, told_apart((a, labels[0]), (b, labels[1])), guilty)
    return FITS


def named(answer: Answer | None, there: Side) -> tuple[Suspect, ...]:
    """The settings of a job that most likely differ; none where the first side is no job that can be estimated."""
    from everybyte.basics.errors import EverybyteError
    from everybyte.cli.progress import Progress
    from everybyte.job import read_job
    from everybyte.plan.suspects import suspects

    if answer is None or "model" not in answer.job:
        return ()
    with Progress("changing one setting at a time", unit="changes") as progress:

        def tell(done: int, total: int) -> None:
            progress.done, progress.total = done, total

        try:
            return suspects(read_job(answer.job), answer, there, tell)
        except EverybyteError:  # an answer of another release whose job is read no more
            return ()


def _label(answer: Answer | None, label: str | None) -> str:
    return label or (answer.worst.label if answer is not None else "")


def _as_before(answer: Answer | None, other: Answer | None, rank: str | None, against: str | None) -> dict[str, object]:
    """The object of two answers, which `explain --against` prints too."""
    from everybyte.report.as_json import differences_object
    from everybyte.report.differences import differences
    from everybyte.report.find import find_rank

    if answer is None or other is None:
        return {}
    here, there = find_rank(answer, rank), find_rank(other, against, "--against")
    return differences_object(here, there, differences(here, there))

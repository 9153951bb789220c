"""`everybyte compare A B`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json, unit

if TYPE_CHECKING:
    from everybyte.ledger.answer import RankAnswer


@click.command(no_args_is_help=True)
@click.argument("a")
@click.argument("b")
@click.option("--rank", metavar="LABEL", help="Rank type of A, by label.  [default: the one with the highest peak]")
@click.option("--against", metavar="LABEL", help="Rank type of B, by label.  [default: the one with the highest peak]")
@unit
@as_json
def command(a: str, b: str, rank: str | None, against: str | None, unit: str, as_json: bool) -> int:
    """Compare A and B row by row, the largest difference first.

    A and B are job files, or answers that `estimate --json` or `trace --json` printed into a file.

    \b
    everybyte compare zero2.yaml zero3.yaml
    everybyte trace train.py:build --json > traced.json
    everybyte compare job.yaml traced.json
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.report.differences import differences, show_differences, told_apart

    here, there = _rank(a, rank, "--rank"), _rank(b, against, "--against")

    if as_json:
        from everybyte.report.as_json import differences_object, line

        click.echo(line(differences_object(here, there, differences(here, there))))
        return FITS
    from everybyte.report.console import open_console

    show_differences(open_console(), here, there, unit, told_apart((a, here.label), (b, there.label)))
    return FITS


def _rank(path: str, label: str | None, option: str) -> RankAnswer:
    from everybyte.measure.answers import answer_of_file
    from everybyte.report.find import find_rank

    return find_rank(answer_of_file(path), label, option)

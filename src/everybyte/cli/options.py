"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

UNITS = ("GiB", "GB", "MiB", "MB", "B")


def as_json(command: Command) -> Command:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per answer, and nothing else.")(command)


def unit(command: Command) -> Command:
    """--unit."""
    choice = click.Choice(UNITS, case_sensitive=False)
    text = f"Unit of printed sizes: {', '.join(UNITS)}. JSON always has bytes."
    return click.option("--unit", type=choice, default="GiB", show_default=True, metavar="UNIT", help=text)(command)


def given(command: Command) -> Command:
    """--given."""
    text = "File with known figures in bytes ({kv.pool: 51000000000}); they replace the computed ones."
    return click.option("--given", "given_file", metavar="FILE", help=text)(command)


def answer_options(command: Command) -> Command:
    """What `estimate`, `train` and `serve` have in common."""
    explain = click.option("--explain", is_flag=True, help="Also print every row with its formula and values.")
    chart = click.option("--chart", metavar="FILE", help="Also write a picture (.svg, .png) or the full report (.html, opens offline).")
    one = "Picture that --chart draws: card, phases, ranks, places, or knob:KEY such as knob:micro_batch.  [default: card and phases]"
    picture = click.option("--picture", metavar="NAME", help=one)
    apply = click.option("--apply", type=click.IntRange(min=1), metavar="N", help="Answer the job with the N-th line of advice applied.")
    return as_json(explain(apply(unit(given(chart(picture(command)))))))


def save(command: Command) -> Command:
    """--save."""
    return click.option("--save", metavar="FILE", help="Also write the job to a .yaml or .json file.")(command)

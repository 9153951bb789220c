"""`everybyte sweep JOB... --over KEY=A,B,C`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.ending import DOES_NOT_FIT, FITS, INTERRUPTED, say
from everybyte.cli.options import as_json
from everybyte.cli.progress import Progress
from everybyte.grid.cases import Ask, Case, cases_of_jobs, cases_of_program
from everybyte.job.read import STDIN, parse, text_of
from everybyte.trace.jobs.program import is_job

if TYPE_CHECKING:
    from everybyte.grid.axes import Axis
    from everybyte.grid.run import Grid

OVER = "over"
"""The section of a job file that makes it a sweep."""


@click.command(no_args_is_help=True)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--over", multiple=True, metavar="KEY=A,B,...", help="A setting and its values; may be repeated. Every combination is answered.")
@click.option("--ask", type=click.Choice(get_args(Ask)), help="What is asked of each: the answer, its deciding figures alone, or a trace.  [default: estimate]")
@click.option("--to", metavar="FILE", help="Write the table to a .csv or .parquet file. The same command again goes on where it was.")
@click.option("--workers", type=click.IntRange(min=1, max=1024), metavar="N", help="Processes on this machine.  [default: its cores]")
@click.option("--scheduler", metavar="ADDRESS", help="Run on a Dask cluster that is there, such as tcp://10.0.0.1:8786.")
@click.option("--rows", "shown", type=click.IntRange(min=0), default=40, show_default=True, metavar="N", help="Rows that are printed.")
@as_json
def command(jobs: tuple[str, ...], **options: Any) -> int:
    """Many jobs at once: every combination of models, hardware and settings, one row each.

    JOB is a job file, of which --over changes settings, or several; a job file with a section `over`, which maps settings to lists of values; or a program to
    trace (file.py, module:function), with its own arguments behind --. What is wrong with one combination is the reason in its row and stops no other.

    \b
    everybyte sweep job.yaml --over micro_batch=1,2,4 --over gpu=h100,a100-80gb --to table.csv
    everybyte sweep job.yaml --over model=Qwen/Qwen3-8B,Qwen/Qwen3-14B --over seq_len=4096,8192
    everybyte sweep sweep.yaml --ask quick --to table.parquet --scheduler tcp://10.0.0.1:8786
    everybyte sweep train.py --over gpu=rtx-4090,l40s --over=--batch-size=8,16,32
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    asked = Asked(**options)
    cases = cases_of(jobs, asked)
    if asked.scheduler is not None and asked.workers is not None:
        raise BadInput("--workers", "counts processes of this machine; those of --scheduler are the cluster's")
    try:
        found = _run(cases, asked)
    except KeyboardInterrupt:
        if asked.to is not None:
            say(f"stopped; finished rows are kept in {asked.to}.rows, and the same command goes on with the others", to_stderr=True)
        return INTERRUPTED
    _show(found, asked)
    return FITS if found.failed < len(found.rows) else DOES_NOT_FIT


class Asked(NamedTuple):
    """The options of the command."""

    over: tuple[str, ...]
    ask: Ask | None
    to: str | None
    workers: int | None
    scheduler: str | None
    shown: int
    as_json: bool


def cases_of(words: tuple[str, ...], asked: Asked) -> list[Case]:
    """The cases of a command line. Raises BadInput."""
    from everybyte.grid.axes import read_axis

    axes = [read_axis(text) for text in asked.over]
    target = words[0]
    if target != STDIN and not is_job(target):
        if asked.ask not in (None, "trace"):
            raise BadInput("--ask", f"{target} is a program, which is traced; {asked.ask} goes with a job file")
        cases = cases_of_program(target, words[1:], axes)
    else:
        loaded = [_load(path) for path in words]
        own = [axis for _, _, found in loaded for axis in found]
        if own and len(loaded) > 1:
            raise BadInput(words[0], f"a file with a section `{OVER}` stands alone")
        cases = cases_of_jobs([(name, raw) for name, raw, _ in loaded], [*own, *axes], asked.ask or "estimate")
    if len(cases) == 1 and not axes:
        raise BadInput("--over", "is needed: a sweep goes over the values of a setting, such as --over train.micro_batch=1,2,4")
    return cases


def _load(path: str) -> tuple[str, dict[str, Any], list[Axis]]:
    """The name of a job, its mapping and the axes that its file states."""
    from everybyte.grid.axes import read_axes

    if path == STDIN or os.path.isfile(path):
        raw = parse(text_of(path), path) if path != STDIN else load_any(path)
        if OVER in raw.mapping:
            mapping = {key: value for key, value in raw.mapping.items() if key != OVER}
            return path, mapping, read_axes(raw.mapping[OVER], path)
    return path, load_any(path).mapping, []


def _run(cases: list[Case], asked: Asked) -> Grid:
    from everybyte.grid.run import run_grid

    with Progress("answering", unit="combinations") as progress:

        def tell(done: int, total: int) -> None:
            progress.done, progress.total = done, total

        return run_grid(cases, asked.to, workers=asked.workers, scheduler=asked.scheduler, tell=tell)


def _show(found: Grid, asked: Asked) -> None:
    if asked.to is not None:
        kept = f", {found.known:,} of them from {asked.to}.rows" if found.known else ""
        say(f"wrote {len(found.rows):,} rows to {asked.to}{kept}", to_stderr=True)
    if asked.as_json:
        from everybyte.report.as_json import line

        for row in found.rows:
            click.echo(line(row))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.sweep import show_grid

        show_grid(open_console(), found, asked.shown)

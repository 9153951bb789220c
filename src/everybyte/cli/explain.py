"""`everybyte explain JOB [ENTRY]`."""

from __future__ import annotations

import click

from everybyte.cli.app import FITS
from everybyte.cli.options import as_json
from everybyte.job import read_job


@click.command(no_args_is_help=True)
@click.argument("job")
@click.argument("entry", required=False)
@click.option("--rank", metavar="LABEL", help="A kind of rank by its label; the one that needs most if left out.")
@as_json
def command(job: str, entry: str | None, rank: str | None, as_json: bool) -> int:
    """How a row of the ledger of JOB came about: formula, numbers put in, bytes, source.

    ENTRY is the id of a row, the beginning of several, a category, or the key of a setting. Without it: the whole ledger, and where each setting comes from.

    \b
    everybyte explain job.yaml
    everybyte explain job.yaml weights
    everybyte explain job.yaml optimizer_state
    everybyte explain job.yaml train.recompute
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.conductor import estimate
    from everybyte.report.find import find_entries, find_rank, find_setting

    answer = estimate(read_job(job))
    ranked = find_rank(answer, rank)
    setting = find_setting(answer, entry) if entry else None
    entries = ranked.ledger if entry is None else () if setting else find_entries(ranked, entry)
    if as_json:
        from everybyte.report.as_json import explanation_object, line

        click.echo(line(explanation_object(answer, ranked, entries, setting)))
        return FITS
    from everybyte.report.console import open_console
    from everybyte.report.explain import show_entries, show_ledger, show_setting

    console = open_console()
    if setting is not None:
        show_setting(console, setting)
    elif entry is None:
        show_ledger(console, answer, ranked)
    else:
        show_entries(console, entries, ranked)
    return FITS

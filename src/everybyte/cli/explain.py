"""`everybyte explain JOB [ENTRY]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json

if TYPE_CHECKING:
    from everybyte.ledger.answer import Answer, RankAnswer


@click.command(no_args_is_help=True)
@click.argument("job")
@click.argument("entry", required=False)
@click.option("--rank", metavar="LABEL", help="Rank type, by label.  [default: the one with the highest peak]")
@click.option("--against", metavar="LABEL", help="Another rank type: show the differences between the two.")
@as_json
def command(job: str, entry: str | None, rank: str | None, against: str | None, as_json: bool) -> int:
    """Show how a number of JOB is computed: formula, values put in, bytes, source.

    ENTRY is the id of a row, a prefix of ids, a category, the key of a setting, or `time` for the terms of a step. Without it: the whole ledger, and the
    origin of each setting.

    \b
    everybyte explain job.yaml
    everybyte explain job.yaml weights
    everybyte explain job.yaml optimizer_state
    everybyte explain job.yaml train.recompute
    everybyte explain job.yaml time
    everybyte explain job.yaml --rank "pp0" --against "pp3"
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.plan.answer import answered
    from everybyte.report.find import find_entries, find_rank, find_setting

    answer = answered(load_any(job).job(), advise=False)
    if entry == "time":
        return _time(answer, as_json)
    ranked = find_rank(answer, rank)
    if against is not None:
        return _differences(ranked, find_rank(answer, against, "--against"), as_json)
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


def _time(answer: Answer, as_json: bool) -> int:
    """The ledger of time. Raises BadInput where the job has none, with the reason."""
    if not answer.time:
        why = next((line for line in answer.assumptions if line.startswith("no figures of speed")), "no figures of speed: no hardware.gpu is named")
        raise BadInput("time", why)
    if as_json:
        from everybyte.report.as_json import head, line

        click.echo(line({**head(answer.name), "time": answer.time}))
        return FITS
    from everybyte.report.console import open_console
    from everybyte.report.time import show_time

    show_time(open_console(), answer)
    return FITS


def _differences(here: RankAnswer, there: RankAnswer, as_json: bool) -> int:
    from everybyte.report.differences import differences, show_differences

    if as_json:
        from everybyte.report.as_json import differences_object, line

        click.echo(line(differences_object(here, there, differences(here, there))))
        return FITS
    from everybyte.report.console import open_console

    show_differences(open_console(), here, there)
    return FITS

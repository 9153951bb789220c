"""`everybyte fit JOB --grow KEY`."""

from __future__ import annotations

import click

from everybyte.cli.app import DOES_NOT_FIT, FITS
from everybyte.cli.options import as_json, unit
from everybyte.cli.progress import Progress
from everybyte.job import read_job


@click.command(no_args_is_help=True)
@click.argument("job")
@click.option("--grow", "key", required=True, metavar="KEY", help="A whole-number setting of the job; with a leading minus the smallest value: -gpus.")
@unit
@as_json
def command(job: str, key: str, unit: str, as_json: bool) -> int:
    """The largest value of a setting of JOB that fits, and what stops the next one.

    KEY is micro_batch, seq_len, context, sequences, adapter.rank ... or a whole key path.

    \b
    everybyte fit job.yaml --grow micro_batch
    everybyte fit serve.yaml --grow context
    everybyte fit job.yaml --grow -gpus
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.plan.fit import fit

    read = read_job(job)
    with Progress(f"growing {key}"):
        result = fit(read, key)
    if as_json:
        from everybyte.report.as_json import fit_object, line

        click.echo(line(fit_object(read.name, result)))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.fit import show_fit

        show_fit(open_console(), result, unit)
    return FITS if result.value is not None else DOES_NOT_FIT

"""`everybyte fit JOB --grow KEY`."""

from __future__ import annotations

import click

from everybyte.cli.ending import DOES_NOT_FIT, FITS
from everybyte.cli.options import as_json, unit
from everybyte.cli.progress import Progress
from everybyte.job import Job, read_job


@click.command(no_args_is_help=True)
@click.argument("job")
@click.option(
    "--grow", "key", required=True, metavar="KEY",
    help="A whole-number setting of the job; with a leading minus the smallest value: -gpus. Of memory_fraction all values that work are shown.",
)  # fmt: skip
@unit
@as_json
def command(job: str, key: str, unit: str, as_json: bool) -> int:
    """The largest value of a setting of JOB that fits, and what stops the next one.

    KEY is micro_batch, seq_len, context, sequences, adapter.rank ... or a whole key path. Of a server, weights is the widest format that fits,
    context the longest that the cache holds, sequences how many of them at once, -gpus the fewest GPUs that share its weights.

    \b
    everybyte fit job.yaml --grow micro_batch
    everybyte fit serve.yaml --grow context
    everybyte fit serve.yaml --grow weights
    everybyte fit serve.yaml --grow memory_fraction
    everybyte fit job.yaml --grow -gpus
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.plan.formats import KEYS
    from everybyte.plan.keys import SHARE, resolve_key

    read = read_job(job)
    if key in KEYS:
        return _fit_format(read, unit, as_json=as_json)
    if resolve_key(read, key.removeprefix("-")) == SHARE:
        return _share(read, key, as_json=as_json)
    from everybyte.plan.fit import fit

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


def _share(job: Job, key: str, *, as_json: bool) -> int:
    """All values of memory_fraction that work."""
    from everybyte.plan.share import feasible

    with Progress(f"growing {key}"):
        result = feasible(job)
    if as_json:
        from everybyte.report.as_json import line, share_object

        click.echo(line(share_object(job.name, result)))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.fit import show_share

        show_share(open_console(), result)
    return FITS if result.intervals else DOES_NOT_FIT


def _fit_format(job: Job, unit: str, as_json: bool) -> int:
    """The widest format of weights that fits."""
    from everybyte.plan.formats import fit_format

    with Progress("trying formats of weights"):
        result = fit_format(job)
    if as_json:
        from everybyte.report.as_json import format_object, line

        click.echo(line(format_object(job.name, result)))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.fit import show_format

        show_format(open_console(), result, unit)
    return FITS if result.value is not None else DOES_NOT_FIT

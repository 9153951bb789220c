"""`everybyte fit JOB --grow KEY`, `everybyte fit train MODEL ...` and `everybyte fit serve MODEL ...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.ending import DOES_NOT_FIT, FITS
from everybyte.cli.flags import job_flags, raw_job
from everybyte.cli.from_flags import start
from everybyte.cli.job_command import JobCommand
from everybyte.cli.options import Command, as_json, save, unit
from everybyte.cli.progress import Progress
from everybyte.job import Job, write_job
from everybyte.job.flags import TABLES

GPU_KEYS = ("gpus", "hardware.gpus")
"""Of these each number is laid out anew where flags leave the layout open."""
GROW = "What to grow; with a leading minus the smallest value, such as -gpus."


def grow(command: Command) -> Command:
    """--grow."""
    return click.option("--grow", "key", metavar="KEY", help=GROW)(command)


@click.command(no_args_is_help=True)
@click.argument("job")
@grow
@unit
@as_json
def command(job: str, key: str | None, unit: str, as_json: bool) -> int:
    """The largest value of a setting that fits, and what stops the next one.

    JOB is a job file, or a configuration that `everybyte import` reads. `everybyte fit train MODEL` and `everybyte fit serve MODEL` take the flags of
    `train` and `serve` instead.

    KEY is micro_batch, seq_len, context, adapter.rank ... or a whole key path. Of a server: weights (the widest format that fits), context (the longest
    that the cache holds), sequences (how many of them at once), memory_fraction (all values that work), -gpus (the fewest that hold the model).

    \b
    everybyte fit job.yaml --grow micro_batch
    everybyte fit train meta-llama/Llama-3.1-8B --gpu 4090 --lora 16 --grow seq_len
    everybyte fit serve Qwen/Qwen3-32B --gpu h100 --grow context
    everybyte fit serve Llama-3.3-70B-Instruct --gpu 2x3090 --context 32k --engine llama.cpp --grow weights
    everybyte fit serve.yaml --grow -gpus
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    return answer_fit(load_any(job).job(), key, unit, as_json=as_json)


def _of_flags(purpose: str) -> click.Command:
    """`fit train` or `fit serve`."""
    flags = TABLES[purpose]

    @click.command(f"fit {purpose}", cls=JobCommand, purpose=purpose, no_args_is_help=True)
    @click.argument("model")
    @job_flags(flags)
    @grow
    @save
    @unit
    @as_json
    def command(model: str, key: str | None, unit: str, as_json: bool, save: str | None, **options: Any) -> int:
        settings = options.pop("set_")
        stated = raw_job(purpose, model, flags, options, settings).job()
        job = start(stated).job
        if save is not None:
            write_job(job, save)
        if key is not None and key.removeprefix("-") in GPU_KEYS:
            return answer_fit(stated, key, unit, as_json=as_json, lay_out=lambda changed: start(changed).job)
        return answer_fit(job, key, unit, as_json=as_json)

    command.help = f"The largest value of a setting that fits, with the flags of `everybyte {purpose}`."
    return command


TRAIN, SERVE = (_of_flags(purpose) for purpose in ("train", "serve"))


def answer_fit(read: Job, key: str | None, unit: str, *, as_json: bool, lay_out: Callable[[Job], Job] = lambda job: job) -> int:
    """Searches, shows what was found, and what would make it fit where nothing does; the exit code."""
    from everybyte.plan.formats import KEYS
    from everybyte.plan.keys import SHARE, resolve_key

    if key is None:
        usual = "micro_batch, seq_len, adapter.rank" if read.train is not None else "context, sequences, weights, memory_fraction"
        raise BadInput("--grow", f"what shall grow? Name one of {usual}, or -gpus for the fewest GPUs")
    from everybyte.plan.answer import server_laid_out

    read = server_laid_out(read)[0]
    if key in KEYS:
        return _fit_format(read, unit, as_json=as_json)
    if resolve_key(read, key.removeprefix("-")) == SHARE:
        return _share(read, key, as_json=as_json)
    from everybyte.plan.answer import advice_on
    from everybyte.plan.fit import fit

    with Progress(f"growing {key}") as progress:
        result = fit(read, key, tell=lambda value: setattr(progress, "words", f"trying {value:,}"), lay_out=lay_out)
    rows = advice_on(lay_out(read), result)
    if as_json:
        from everybyte.report.as_json import fit_object, line

        click.echo(line(fit_object(read.name, result, rows)))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.fit import show_fit

        show_fit(open_console(), result, unit, rows)
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

"""`everybyte doctor FILE|-`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import click

from everybyte.basics.errors import BadInput


@click.command(no_args_is_help=True)
@click.argument("log", metavar="LOG")
@click.option("--job", metavar="JOB", help="The job that ran: names the tensor, and estimates what each cure saves.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(log: str, job: str | None, *, as_json: bool) -> int:
    """Say why a job ran out of memory, from its log.

    LOG is a file of any size, or - for standard input: an error message, the output of a run, a kernel log.

    \b
    everybyte doctor train.log
    everybyte doctor train.log --job job.yaml
    kubectl logs my-pod | everybyte doctor -

    The answer: what asked for how much, in which phase, the cause with how sure it is, and the cheapest cures. With --job each cure is estimated.
    Exit codes: 1 a memory fault was found, 0 there is none in the log, 2 the log cannot be read.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.diagnose.doctor import diagnose
    from everybyte.job import load
    from everybyte.report import doctor as report
    from everybyte.report.console import open_console

    asked = load(job).job() if job is not None else None
    with opened(log) as stream:
        found = diagnose(stream, asked)
    if as_json:
        click.echo(json.dumps(report.as_json(found), ensure_ascii=False))
    else:
        console = open_console()
        for line in report.screen(found):
            console.print(line)
    return 1 if found.is_memory_fault else 0


def opened(log: str) -> BinaryIO | nullcontext[BinaryIO]:
    """The log as bytes. Raises BadInput with the place for what cannot be read."""
    if log == "-":
        return nullcontext(sys.stdin.buffer)
    path = Path(log)
    if path.is_dir():
        raise BadInput(log, "is a folder; give the log's file")
    try:
        return path.open("rb")
    except OSError as error:
        raise BadInput(log, f"cannot be read: {error.strerror or error}") from None

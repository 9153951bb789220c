"""`everybyte record -- COMMAND`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(no_args_is_help=True, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="record.json", show_default=True, help="Where the record goes.")
@click.option("--period", type=click.FloatRange(min=0.01), default=0.1, show_default=True, help="Seconds between two looks from outside.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as well.")
def command(words: tuple[str, ...], out: Path, period: float, *, as_json: bool) -> int:
    """Run COMMAND and measure its memory: torch's peaks, each process as the driver sees it, host memory.

    \b
    everybyte record -- python train.py
    everybyte record --out run.json -- torchrun --nproc-per-node 8 train.py

    Every Python process of the run that loads torch says what it saw when it ends; from outside, GPUs and host memory are looked at ten times a second.
    The exit code is the command's own.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.measure.recording.outside import record
    from everybyte.report.record import screen

    found, code = record(words, period)
    out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(found))
    else:
        for line in screen(found):
            click.echo(line, err=True)
        click.echo(f"written to {out}", err=True)
    return code

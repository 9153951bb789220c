"""`everybyte gpus [WORDS...]`."""

from __future__ import annotations

import click

from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json
from everybyte.cli.search import search


@click.command()
@click.argument("words", nargs=-1)
@as_json
def command(words: tuple[str, ...], as_json: bool) -> int:
    """List the GPUs that match all WORDS. A single match is shown in full, with its sources.

    \b
    everybyte gpus
    everybyte gpus h100
    everybyte gpus consumer
    everybyte gpus 4090
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.catalog.gpus import all_gpus, find_gpu

    found = search(all_gpus(), words, lambda gpu: (gpu.name, *gpu.aliases, gpu.vendor, gpu.segment), find_gpu)
    if as_json:
        from everybyte.report.as_json import line

        for gpu in found:
            click.echo(line(gpu._asdict()))
        return FITS
    from everybyte.report.catalogue import show_gpu, show_gpus
    from everybyte.report.console import open_console

    console = open_console()
    if len(found) == 1:
        show_gpu(console, found[0])
    else:
        show_gpus(console, found)
    return FITS

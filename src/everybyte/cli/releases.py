"""`everybyte releases [ENGINE [RELEASE]]`."""

from __future__ import annotations

import click

from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json


@click.command()
@click.argument("engine", required=False)
@click.argument("release", required=False)
@as_json
def command(engine: str | None, release: str | None, as_json: bool) -> int:
    """What changed in which release of a framework, an engine or a library, as far as memory goes.

    Without ENGINE: all that are known, and the newest release of each that was read. With RELEASE (0.20, 2025-08, b9500): that release alone.

    \b
    everybyte releases
    everybyte releases vllm
    everybyte releases vllm 0.20
    everybyte releases torchtitan 2025-08
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.catalog.releases import events, line_named, lines, releases

    found = [line_named(engine)] if engine is not None else [releases(name) for name in lines()]
    chosen = [(line, events(line, release)) for line in found]
    if as_json:
        from everybyte.report.as_json import line as as_line
        from everybyte.report.releases import as_plain

        for line, happened in chosen:
            click.echo(as_line(as_plain(line, happened)))
        return FITS
    from everybyte.report.console import open_console
    from everybyte.report.releases import show_events, show_lines

    console = open_console()
    if engine is None:
        show_lines(console, [line for line, _ in chosen])
    else:
        show_events(console, *chosen[0])
    return FITS

"""`everybyte models [WORDS...]`."""

from __future__ import annotations

import click

from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json
from everybyte.cli.search import search


@click.command()
@click.argument("words", nargs=-1)
@click.option("--architectures", is_flag=True, help="List the architectures that are supported from a config.json.")
@as_json
def command(words: tuple[str, ...], architectures: bool, as_json: bool) -> int:
    """List the models that match all WORDS. A single match is shown in full, with its sources.

    \b
    everybyte models
    everybyte models qwen3 moe
    everybyte models llama-3.1-8b
    everybyte models --architectures
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    if architectures:
        return _show_architectures(as_json)
    from everybyte.catalog.models import all_models, find_model

    found = search(all_models(), words, lambda row: (row.name, row.model_type, row.architecture), find_model)
    if as_json:
        from everybyte.report.as_json import line

        for row in found:
            click.echo(line(row._asdict()))
        return FITS
    from everybyte.report.catalogue import show_model, show_models
    from everybyte.report.console import open_console

    console = open_console()
    if len(found) == 1:
        show_model(console, found[0])
    else:
        show_models(console, found)
    return FITS


def _show_architectures(as_json: bool) -> int:
    from everybyte.models.registry import supported
    from everybyte.report.as_json import line

    names = supported()
    click.echo(line(names) if as_json else "\n".join(names))
    return FITS

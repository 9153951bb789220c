"""`everybyte export JOB --to TARGET`."""

from __future__ import annotations

from pathlib import Path

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.ending import FITS, refuse
from everybyte.cli.options import as_json
from everybyte.formats.writers import WRITERS, export
from everybyte.job.read import read_job


@click.command(no_args_is_help=True)
@click.argument("job", metavar="JOB")
@click.option("--to", required=True, type=click.Choice(list(WRITERS)), metavar="TARGET", help=f"Whose words: {', '.join(WRITERS)}.")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Write the files there instead of printing them.")
@as_json
def command(job: str, to: str, folder: Path | None, as_json: bool) -> int:
    """Writes a job as the configuration or command of a framework or engine.

    JOB is a job file; - is standard input. What the target has no word for is told on standard error and in a comment.

    \b
    everybyte export job.yaml --to vllm
    everybyte export job.yaml --to docker-compose --out .

    Exit codes: 0 written; 2 refused, with the place.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    try:
        written = export(read_job(job), to)
    except BadInput as error:
        return refuse(str(error))
    if as_json:
        from everybyte.report.as_json import line

        click.echo(line({"to": to, "files": {file.name: file.text for file in written.files}, "left_out": dict(written.left_out)}))
    elif folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in written.files:
            (folder / file.name).write_text(file.text, encoding="utf-8")
            click.echo(str(folder / file.name))
    else:
        several = len(written.files) > 1
        click.echo("\n".join((f"# --- {file.name}\n" if several else "") + file.text.rstrip("\n") for file in written.files))
    for key, reason in written.left_out if not as_json else ():
        click.echo(f"not written: {key}: {reason}", err=True)
    return FITS

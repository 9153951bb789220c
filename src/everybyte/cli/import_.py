"""`everybyte import FILE... | --command TEXT`."""

from __future__ import annotations

from os.path import basename
from typing import Any

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.ending import BAD_INPUT, FITS, refuse
from everybyte.cli.options import as_json
from everybyte.formats.draft import JobDraft
from everybyte.formats.finish import Imported, finish
from everybyte.formats.read import read
from everybyte.formats.source import Source, command_source, open_source

FOUND = 1
"""Exit code: read, and a finding says that the run will fail or is not what was meant."""


@click.command(no_args_is_help=True)
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--command", "command_text", metavar="TEXT", help="A command line instead of a file, in quotes. It is read and never run.")
@click.option("--as", "as_format", metavar="FORMAT", help="The format, where its content does not say it: axolotl, deepspeed, vllm, shell, ...")
@click.option("--framework-version", "version", metavar="VERSION", help="Whose defaults hold; without it the newest version that is known.")
@click.option("--model", metavar="NAME", help="The model, where the files name none.")
@click.option("--gpu", metavar="NAME", help="The GPU, where the files name none.")
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="All GPUs of the job, where the files do not say how many.")
@click.option("--job", "number", type=click.IntRange(1), metavar="N", help="Only the N-th job of a file that starts several.")
@click.option("--explain", is_flag=True, help="Each setting with its origin: stated, default or inferred; and what findings cost in bytes.")
@as_json
def command(
    files: tuple[str, ...],
    command_text: str | None,
    as_format: str | None,
    version: str | None,
    model: str | None,
    gpu: str | None,
    gpus: int | None,
    number: int | None,
    explain: bool,
    as_json: bool,
) -> int:
    """Reads somebody's configuration or command line as a job.

    FILE is what people have: the YAML of axolotl or LLaMA-Factory, a DeepSpeed JSON, a Megatron script, a compose file; - is standard input. Files that belong
    together are given together. Nothing in them is run or fetched. The job is printed as YAML, notes go to standard error.

    \b
    everybyte import tune.yaml ds_config.json > job.yaml
    everybyte import --command "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 16384"
    everybyte import train.sh --job 2 --explain

    Exit codes: 0 read; 1 read, and a finding is an error; 2 refused, with the place.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    try:
        sources = _sources(files, command_text)
        drafts = read(sources, as_format=as_format, version=version)
        for draft in drafts:
            _complete(draft, {"model": model, "hardware.gpu": gpu, "hardware.gpus": gpus})
        jobs = [finish(draft) for draft in drafts]
        jobs = _chosen(jobs, number)
        if explain:
            from everybyte.formats.effects import with_effects

            jobs = [with_effects(job) for job in jobs]
    except BadInput as error:
        return _refuse(files[0] if files else "command", error, as_json=as_json)
    if as_json:
        from everybyte.report.as_json import line
        from everybyte.report.imported import imported_object

        for job in jobs:
            click.echo(line(imported_object(job)))
    else:
        from everybyte.report.imported import jobs_text, notes_text

        click.echo(_short(jobs_text(jobs, explain=explain), files))
        if notes := notes_text(jobs):
            click.echo(_short(notes, files), err=True)
    return FOUND if any(job.has_errors for job in jobs) else FITS


def _complete(draft: JobDraft, flags: dict[str, Any]) -> None:
    """Flags fill what the files leave open."""
    for key, value in flags.items():
        if value is not None and not draft.stated(key):
            draft.state(key, value, f"--{key.rpartition('.')[2]}")
            draft.missing = [missing for missing in draft.missing if missing.key != key]


def _short(text: str, files: tuple[str, ...]) -> str:
    """The text with places as `tune.yaml:3`, where no two files have the same name."""
    names = [basename(file) for file in files]
    if len(set(names)) == len(names):
        for file, name in zip(files, names, strict=True):
            text = text.replace(f"{file}:", f"{name}:")
    return text


def _sources(files: tuple[str, ...], command_text: str | None) -> list[Source]:
    if not files and command_text is None:
        raise BadInput("FILE", "nothing to read; give a file, - for standard input, or --command TEXT")
    sources = [open_source(file) for file in files]
    return sources if command_text is None else [*sources, command_source(command_text)]


def _chosen(jobs: list[Imported], number: int | None) -> list[Imported]:
    if number is None:
        return jobs
    if number > len(jobs):
        raise BadInput("--job", f"there are {len(jobs)} jobs, no {number}-th")
    return [jobs[number - 1]]


def _refuse(name: str, error: BadInput, *, as_json: bool) -> int:
    if not as_json:
        return refuse(str(error))
    from everybyte.report.as_json import error_object, line

    click.echo(line(error_object(name, error)))
    return BAD_INPUT

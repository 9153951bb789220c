"""`everybyte estimate JOB...`."""

from __future__ import annotations

import click

from everybyte.cli.answers import Options, answer_files
from everybyte.cli.options import answer_options


@click.command(no_args_is_help=True)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@answer_options
def command(jobs: tuple[str, ...], **options: object) -> int:
    """Estimate the GPU memory of each JOB and say whether it fits.

    JOB is a YAML, JSON or TOML file, - for standard input, or a configuration that `everybyte import` reads.

    \b
    everybyte estimate job.yaml
    everybyte estimate job.yaml --explain | less
    everybyte estimate runs/*.yaml --json
    echo '{model: Qwen/Qwen2.5-7B, serve: {engine: transformers, context: 8192}}' | everybyte estimate -

    With --json, one line per JOB in the order given; a bad JOB becomes {"name", "error"} and the others are still answered.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    return answer_files(jobs, Options(**options))  # type: ignore[arg-type]  # click hands over exactly the options' fields

"""`everybyte "vllm serve ..."`: the answer to somebody's command line."""

from __future__ import annotations

from typing import Any

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.answers import Options, Source, answer_all
from everybyte.cli.from_flags import start
from everybyte.cli.model_name import name_model
from everybyte.cli.options import answer_options
from everybyte.job import RawJob


@click.command("everybyte", no_args_is_help=True)
@click.argument("text")
@click.option("--gpu", metavar="NAME", help="The GPU that it runs on, where the command does not say it.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="How many of them.")
@answer_options
def command(text: str, gpu: str | None, gpus: int | None, **options: Any) -> int:
    """Estimate the GPU memory of a command line, which is read and never run.

    \b
    everybyte "vllm serve Qwen/Qwen3-8B --max-model-len 16384" --gpu l40s
    everybyte "llama-server -m Llama-3.1-8B-Q4_K_M.gguf -c 8192 -ngl 99" --gpu 4090
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.formats.finish import finish
    from everybyte.formats.read import read
    from everybyte.formats.source import command_source
    from everybyte.report.imported import notes_text

    jobs = [finish(draft) for draft in read([command_source(text)])]
    if not any("model" in job.job for job in jobs):
        raise BadInput("command", f"no model is named in {text!r}, or its program is not known; `everybyte import --help` says what is read")
    if notes := notes_text(jobs):
        click.echo(notes, err=True)
    sources = [Source(job.name or text, _loader(_on(job.job, gpu, gpus), text), start) for job in jobs]
    return answer_all(sources, Options(**options))


def _loader(raw: dict[str, Any], text: str) -> Any:
    return lambda: RawJob(raw, lambda _: text)


def _on(job: dict[str, Any], gpu: str | None, gpus: int | None) -> dict[str, Any]:
    """The job on the hardware that flags name, with its model in the catalogue's words."""
    purpose = "train" if "train" in job else "serve"
    job = {**job, purpose: dict(job.get(purpose) or {})}
    name_model(job, purpose)
    stated = {key: value for key, value in (("gpu", gpu), ("gpus", gpus)) if value is not None}
    return {**job, "hardware": {**job.get("hardware", {}), **stated}} if stated else job

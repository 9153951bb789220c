"""`everybyte serve MODEL`."""

from __future__ import annotations

import click

from everybyte.cli.flags import SERVE, job_flags
from everybyte.cli.from_flags import answer_flags
from everybyte.cli.options import answer_options, save


@click.command(no_args_is_help=True)
@click.argument("model")
@job_flags(SERVE)
@save
@answer_options
def command(model: str, **options: object) -> int:
    """What serving MODEL needs, from flags instead of a job file.

    MODEL is a catalogue name, a path to a config.json, a model folder, a .safetensors or .gguf file, or hf:ORG/NAME.

    \b
    everybyte serve meta-llama/Meta-Llama-3.1-8B --gpu l40s --engine transformers --context 131072 --sequences 1
    everybyte serve Qwen/Qwen2.5-7B --gpu a10g --engine transformers --weights nf4 --context 8192 --save job.yaml
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    return answer_flags("serve", model, SERVE, options)

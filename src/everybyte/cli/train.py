"""`everybyte train MODEL`."""

from __future__ import annotations

import click

from everybyte.cli.flags import job_flags
from everybyte.cli.from_flags import answer_flags
from everybyte.cli.job_command import JobCommand
from everybyte.cli.options import answer_options, save
from everybyte.job.flags import TRAIN


@click.command(cls=JobCommand, purpose="train", no_args_is_help=True)
@click.argument("model")
@job_flags(TRAIN)
@save
@answer_options
def command(model: str, **options: object) -> int:
    """Estimate the GPU memory of training MODEL, from flags.

    MODEL is a catalogue name, a path to a config.json, a model folder, a .safetensors or .gguf file, or hf:ORG/NAME.

    \b
    everybyte train meta-llama/Meta-Llama-3.1-8B --gpu rtx-4090 --seq-len 2048 --micro-batch 1 --qlora 16
    everybyte train Qwen/Qwen2.5-7B --gpu h100-80gb --precision bf16-mixed --recompute full --save job.yaml
    everybyte train meta-llama/Llama-3.2-1B --gpu rtx-4090 --framework torchtune --micro-batch 2 --seq-len 4096 --recompute full
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    return answer_flags("train", model, TRAIN, options)

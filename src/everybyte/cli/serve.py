"""`everybyte serve MODEL`."""

from __future__ import annotations

import click

from everybyte.cli.flags import job_flags
from everybyte.cli.from_flags import answer_flags
from everybyte.cli.job_command import JobCommand
from everybyte.cli.options import answer_options, save
from everybyte.job.flags import SERVE


@click.command(cls=JobCommand, purpose="serve", no_args_is_help=True)
@click.argument("model")
@job_flags(SERVE)
@save
@answer_options
def command(model: str, **options: object) -> int:
    """Estimate the GPU memory of serving MODEL, from flags.

    MODEL is a catalogue name, a path to a config.json, a model folder, a .safetensors or .gguf file, or hf:ORG/NAME.

    The answer states the tokens that fit in the KV cache, the max concurrency at full context, and why an engine would refuse to start.
    `everybyte fit JOB --grow context` (or sequences, memory_fraction, -gpus) searches for the limit.

    \b
    everybyte serve meta-llama/Meta-Llama-3.1-8B --gpu h100-80gb --engine sglang --engine-version 0.5.13
    everybyte serve deepseek-ai/DeepSeek-V3 --gpu h200 --gpus 8 --tp 8 --engine sglang --context 65536 --save job.yaml
    everybyte serve Qwen/Qwen2.5-32B --gpu rtx-4090 --engine exllama --weights exl3 --weights-bits 4 --kv-dtype q6 --context 32768
    everybyte serve meta-llama/Meta-Llama-3.1-8B --gpu a100-80gb --engine tensorrt-llm --batched-tokens 8192
    everybyte serve Qwen/Qwen2.5-7B --gpu a10g --engine transformers --weights nf4 --context 8192
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    return answer_flags("serve", model, SERVE, options)

"""`everybyte read FILE`."""

from __future__ import annotations

import json

import click

from everybyte.cli.doctor import opened


@click.command(no_args_is_help=True)
@click.argument("log", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(log: str, *, as_json: bool) -> int:
    """Read measured memory figures from a log, under the names that estimates use.

    FILE is a start-up log of vLLM, SGLang, llama.cpp, ollama, TensorRT-LLM, LMDeploy, TGI or MLX, the output of a training run (DeepSpeed, Megatron,
    torchtitan, torchtune), or what nvidia-smi prints (table or CSV); - for standard input.

    \b
    everybyte read server.log
    nvidia-smi | everybyte read -
    everybyte read server.log --json

    Each figure stands with its rank, its line, and the last digit that was printed. Engines' own estimates are no measured figures.
    Exit codes: 0 read, 2 nothing in it is known.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.measure.start_logs.read import read
    from everybyte.report import start_log
    from everybyte.report.console import open_console

    with opened(log) as stream:
        found = read(stream, log)
    if as_json:
        click.echo(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        console = open_console()
        for line in start_log.screen(found):
            console.print(line)
    return 0

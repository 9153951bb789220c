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
    torchtitan, torchtune, the Trainer), what nvidia-smi, rocm-smi, amd-smi or xpu-smi print (tables or CSV), or what torch.profiler writes (memory timelines,
    chrome traces); - for standard input.

    \b
    everybyte read server.log
    nvidia-smi | everybyte read -
    everybyte read server.log --json

    Each figure stands with its rank, its line, and the last digit that was printed. Engines' own estimates are no measured figures.
    Exit codes: 0 read, 2 nothing in it is known.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.measure.profiles.figures import figures_of
    from everybyte.measure.profiles.read import HEAD, is_profile, read_profile
    from everybyte.measure.start_logs.read import read
    from everybyte.report import start_log
    from everybyte.report.console import open_console

    with opened(log) as stream:
        is_file = log != "-"
        head = stream.read(HEAD) if is_file else b""
        if is_profile(head, log):
            found = figures_of(read_profile(log))
        else:
            if is_file:
                stream.seek(0)
            found = read(stream, log)
    if as_json:
        click.echo(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        console = open_console()
        for line in start_log.screen(found):
            console.print(line)
    return 0

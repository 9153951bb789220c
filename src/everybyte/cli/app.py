"""The command group; `ending` makes messages and exit codes of errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

import click

from everybyte.basics.errors import did_you_mean
from everybyte.basics.version import __version__
from everybyte.cli.completion import completing
from everybyte.cli.ending import BAD_INPUT, FITS, INTERRUPTED, ended, refuse
from everybyte.cli.language import chosen_language, in_language
from everybyte.report.language import said

COMMANDS: dict[str, str] = {
    "estimate": "GPU memory of jobs: verdict, breakdown, 90 % intervals.",
    "train": "The same for a training run, from flags.",
    "serve": "The same for an inference server, from flags.",
    "import": "Read a configuration or command line of another tool as a job.",
    "export": "Write a job as the configuration or command of another tool.",
    "fit": "The largest batch, context ... that fits, or the fewest GPUs.",
    "plan": "The fastest or cheapest layouts of a training job that fit.",
    "sweep": "Many jobs at once: models x hardware x settings, as one table.",
    "hardware": "Which GPUs and cloud instances hold a job, and at what price.",
    "trace": "Run real PyTorch code on fake tensors and record every allocation.",
    "compare": "Compare two jobs or answers, row by row.",
    "doctor": "Why a job ran out of memory, from its log or error message.",
    "record": "Run a command and measure its memory.",
    "watch": "Live: what each process holds on each GPU.",
    "snapshot": "Where the bytes of a PyTorch memory snapshot are.",
    "read": "Measured figures from a start-up log, a training log or nvidia-smi.",
    "explain": "How a number is computed: formula, values, source.",
    "models": "List and search known models.",
    "gpus": "List and search known GPUs.",
    "releases": "What changed in which release of a framework or engine.",
    "formulas": "Published memory formulas, with values put in.",
    "truth": "Accuracy: predicted against measured, by group of runs.",
    "ui": "Start the web page and its HTTP API.",
}
"""Each command is a module of this package with its name (`import_` where the name is a word of Python) and a click command called `command`."""

OF_FLAGS = ("fit", "hardware")
"""Commands that take a job file, or `train` and `serve` with their flags."""

FAMILIES = ("llama", "qwen", "mistral", "gemma", "deepseek", "phi-")
"""Words by which a model's name is known where a command is expected."""
JOB_FILES = (".yaml", ".yml", ".json", ".toml")

START = """Will it fit?
  everybyte train meta-llama/Llama-3.1-8B --gpu 4090 --qlora
How many users, how long a context?
  everybyte serve Qwen/Qwen3-32B --gpu h100
How large can it be?
  everybyte fit serve Qwen/Qwen3-32B --gpu h100 --grow context
What does this command need?
  everybyte "vllm serve Qwen/Qwen3-8B --max-model-len 16384" --gpu l40s
In the browser
  everybyte ui

`everybyte --help` lists all commands, `everybyte COMMAND --help` says more.
"""
"""What `everybyte` alone says."""


class LazyGroup(click.Group):
    """Loads a subcommand's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the table, which is that of a first visit."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"everybyte.cli.{module}").command
        return in_language(completing(command))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the nearest names for an unknown one."""
        if args[:1] and args[0] in OF_FLAGS and args[1:2] in (["train"], ["serve"]):
            return f"{args[0]} {args[1]}", getattr(import_module(f"everybyte.cli.{args[0]}"), args[1].upper()), args[2:]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            return self._without_command(ctx, args)
        return super().resolve_command(ctx, args)

    def _without_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """A job file, or a command line in quotes, needs no command of ours; anything else gets the nearest names."""
        word = args[0]
        if " " in word.strip():
            return "everybyte", import_module("everybyte.cli.line").command, args
        if word.casefold().endswith(JOB_FILES) and os.path.isfile(word):
            return "estimate", self.get_command(ctx, "estimate"), args
        if "/" in word or any(family in word.casefold() for family in FAMILIES):
            raise click.UsageError(f"{word!r} looks like a model: say `everybyte serve {word} --gpu h100`, or `everybyte train {word} --gpu h100 --lora 16`")
        raise click.UsageError(f"there is no command {word!r}{did_you_mean(word, COMMANDS)}; `everybyte --help` lists all")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table: no module is loaded for it."""
        with formatter.section(said("Commands")):
            formatter.write_dl([(name, said(words)) for name, words in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--lang", metavar="CODE", expose_value=False, help="Language: en or zh.  [default: EVERYBYTE_LANG, LANG]")
@click.version_option(__version__, message="everybyte %(version)s")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Every byte on the GPU, accounted for before you launch.

    \b
    everybyte estimate job.yaml
    everybyte train meta-llama/Meta-Llama-3.1-8B --gpu rtx-4090 --seq-len 2048 --micro-batch 1 --qlora 16
    everybyte serve Qwen/Qwen2.5-7B --gpu l40s --engine transformers --context 32768
    everybyte fit job.yaml --grow micro_batch
    everybyte explain job.yaml

    Exit codes: 0 yes, fits; 1 no, does not fit; 2 bad input. Every command takes --json.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    if ctx.invoked_subcommand is None:
        click.echo(said(START), nl=False)


def run(args: Sequence[str]) -> int:
    """Runs a command line; the exit code. Whatever goes wrong ends as one message on standard error."""
    return ended(lambda: _run(args))


def _run(args: Sequence[str]) -> int:
    try:
        code = in_language(group).main(chosen_language(args), prog_name="everybyte", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as nothing_asked:
        click.echo(nothing_asked.format_message())
        return BAD_INPUT
    except click.ClickException as error:
        return refuse(error.format_message())
    except click.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else FITS

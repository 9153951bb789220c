"""`everybyte hardware JOB`, `everybyte hardware train MODEL ...`, `everybyte hardware serve MODEL ...` and `everybyte hardware --have MACHINE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.ending import DOES_NOT_FIT, FITS
from everybyte.cli.flags import COUNT, job_flags, raw_job
from everybyte.cli.from_flags import start
from everybyte.cli.job_command import JobCommand
from everybyte.cli.options import Command, as_json
from everybyte.cli.progress import Progress
from everybyte.job import Job
from everybyte.job.flags import TABLES
from everybyte.plan.hardware.survey import Order

if TYPE_CHECKING:
    from everybyte.plan.hardware.machine import Machine
    from everybyte.plan.hardware.owned import BreakEven
    from everybyte.plan.hardware.survey import Survey

OWN_FLAGS = ("hardware.gpu", "hardware.gpus")
"""What this command answers; the other flags of a job stay."""


def survey_options(command: Command) -> Command:
    """What the forms of this command have in common."""
    only = click.option("--only", multiple=True, metavar="WORD", help="Only GPUs with this word in name, vendor or segment; may be repeated.")
    provider = click.option("--provider", multiple=True, metavar="NAME", help="Only GPUs that this provider rents out; may be repeated.")
    order = click.option(
        "--by", type=click.Choice(get_args(Order)), default="price", show_default=True, help="Order: rent an hour, cost of a token, speed, number of GPUs."
    )
    most = click.option("--most", type=click.IntRange(min=1), default=1024, show_default=True, metavar="N", help="Most GPUs that are tried.")
    tokens = click.option("--run-tokens", "tokens", type=COUNT, metavar="N", help="Tokens of the whole run, such as 10b: adds its price.")
    buy = click.option("--buy", type=click.FloatRange(min=0), metavar="USD", help="Price of an own machine like the first row: when does it pay?")
    kwh = click.option("--kwh", type=click.FloatRange(min=0), metavar="USD", help="Price of a kWh of electricity, for --buy.")
    everything = click.option("--all", "everything", is_flag=True, help="Show every GPU, with and without a price.")
    return only(provider(order(most(tokens(buy(kwh(everything(as_json(command)))))))))


@click.command(no_args_is_help=True)
@click.argument("job", required=False)
@click.option("--have", metavar="MACHINE", help="A machine such as 2x24GB or 3090,4090: what it can do, or whether JOB fits it.")
@survey_options
def command(job: str | None, have: str | None, **options: Any) -> int:
    """Which GPUs and cloud instances hold a job, how many, and at what price.

    Every GPU of the catalogue takes the place of the job's own. The fewest GPUs that hold the job are found for each, with a layout over them where the job
    leaves it open. Prices are data with source and date; they are no offers of today.

    \b
    everybyte hardware job.yaml
    everybyte hardware job.yaml --provider aws --provider gcp --by cost
    everybyte hardware serve Qwen/Qwen3-32B --context 32k --only nvidia
    everybyte hardware train meta-llama/Llama-3.1-70B --qlora --only consumer
    everybyte hardware job.yaml --buy 30000 --kwh 0.30
    everybyte hardware --have 2x24GB
    everybyte hardware job.yaml --have 3090,4090
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    asked = Asked(**options)
    if have is not None:
        return answer_machine(have, load_any(job).job() if job is not None else None, as_json=asked.as_json)
    if job is None:
        raise BadInput("JOB", "is needed: a job file, `train MODEL ...` or `serve MODEL ...`; or --have for what a machine can do")
    return answer_survey(load_any(job).job(), asked)


def _of_flags(purpose: str) -> click.Command:
    """`hardware train` or `hardware serve`."""
    flags = tuple(flag for flag in TABLES[purpose] if flag.path not in OWN_FLAGS)

    @click.command(f"hardware {purpose}", cls=JobCommand, purpose=purpose, no_args_is_help=True)
    @click.argument("model")
    @job_flags(flags)
    @survey_options
    def command(model: str, **options: Any) -> int:
        settings = options.pop("set_")
        given = {name: options.pop(name) for name in list(options) if name.startswith("flag_")}
        return answer_survey(start(raw_job(purpose, model, flags, given, settings).job()).job, Asked(**options))

    command.help = f"Which GPUs and cloud instances hold a job, with the flags of `everybyte {purpose}`."
    return command


TRAIN, SERVE = (_of_flags(purpose) for purpose in ("train", "serve"))


class Asked(NamedTuple):
    """Values of `survey_options`."""

    only: tuple[str, ...]
    provider: tuple[str, ...]
    by: Order
    most: int
    tokens: int | None
    buy: float | None
    kwh: float | None
    everything: bool
    as_json: bool


def answer_survey(job: Job, asked: Asked) -> int:
    """Tries every GPU, shows what was found; the exit code."""
    from everybyte.plan.hardware.survey import survey

    if (asked.buy is None) != (asked.kwh is None):
        raise BadInput("--buy", "goes with --kwh, the price of electricity")
    with Progress("trying GPUs") as progress:
        found = survey(job, asked.only, asked.provider, asked.by, asked.most, lambda name: setattr(progress, "words", name))
    bought = _bought(found, asked.buy, asked.kwh)
    if asked.as_json:
        from everybyte.report.as_json import head, line
        from everybyte.report.hardware import survey_object

        click.echo(line({**head(job.name), **survey_object(found, asked.tokens, bought)}))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.hardware import show_survey

        show_survey(open_console(), found, everything=asked.everything, tokens=asked.tokens, bought=bought)
    return FITS if found.rows else DOES_NOT_FIT


def _bought(found: Survey, buy: float | None, kwh: float | None) -> BreakEven | None:
    """Buying against renting what the first row says."""
    if buy is None or kwh is None:
        return None
    from everybyte.plan.hardware.owned import break_even

    first = next((row for row in found.rows if row.usd_per_hour is not None), None)
    if first is None or first.usd_per_hour is None or first.holding.gpus is None:
        raise BadInput("--buy", "no GPU that holds the job has a price in USD to compare with")
    return break_even(first.holding.gpu, first.holding.gpus, first.usd_per_hour, buy, kwh)


def answer_machine(have: str, job: Job | None, *, as_json: bool) -> int:
    """What a machine can do, or whether a job fits it."""
    from everybyte.plan.hardware.machine import read_machine

    machine = read_machine(have)
    return _tiers(machine, as_json=as_json) if job is None else _one(machine, job, as_json=as_json)


def _tiers(machine: Machine, *, as_json: bool) -> int:
    from everybyte.plan.hardware.tiers import tiers

    with Progress("trying models") as progress:
        found = list(tiers(machine, lambda name: setattr(progress, "words", name)))
    if as_json:
        from everybyte.report.as_json import head, line
        from everybyte.report.hardware import tiers_object

        click.echo(line({**head(machine.name), "tiers": tiers_object(found)}))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.hardware import show_tiers

        show_tiers(open_console(), machine.name, found, _unequal_note(machine))
    return FITS if any(tier.model for tier in found) else DOES_NOT_FIT


def _one(machine: Machine, job: Job, *, as_json: bool) -> int:
    """The answer for a job on a machine, with unequal cards card by card."""
    from everybyte.plan.answer import answered
    from everybyte.plan.hardware.machine import on_machine, with_verdict
    from everybyte.plan.start.layout import laid_out

    placed, taken = laid_out(on_machine(job, machine))
    answer = with_verdict(answered(placed, taken), machine)
    if as_json:
        from everybyte.report.as_json import answer_object, line

        click.echo(line(answer_object(answer)))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.estimate import show_answer

        show_answer(open_console(), answer)
    return FITS if answer.fits else DOES_NOT_FIT


def _unequal_note(machine: Machine) -> str:
    if not machine.is_unequal:
        return ""
    return f"Training and vLLM put the same on each GPU, so that the smallest decides ({machine.smallest.name}); llama.cpp places layers by the memory of each."

"""`everybyte plan JOB` and `everybyte plan train MODEL ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.ending import DOES_NOT_FIT, FITS, say
from everybyte.cli.flags import COUNT, job_flags, raw_job
from everybyte.cli.from_flags import start
from everybyte.cli.job_command import JobCommand
from everybyte.cli.options import Command, as_json
from everybyte.cli.progress import Progress
from everybyte.job import Job
from everybyte.job.flags import TABLES
from everybyte.plan.layouts.search import Objective

if TYPE_CHECKING:
    from everybyte.plan.layouts.search import Found, Plan

OWN_FLAGS = ("hardware.gpus", "train.mesh.tp", "train.mesh.pp", "train.mesh.cp", "train.mesh.ep", "train.sharding", "train.micro_batch", "train.grad_accum")
"""What this command answers; the other flags of a job stay. `--fix` holds one of them."""
NUMBERS = ("tp", "pp", "cp", "ep", "dp", "micro_batch", "grad_accum", "chunks")
WORDS = ("recompute", "sharding", "grads")


def plan_options(command: Command) -> Command:
    """What the forms of this command have in common."""
    gpus = click.option("--gpus", "gpus", metavar="N[,M...]", help="GPUs of the cluster; several numbers are compared.  [default: the job's]")
    batch = click.option("--global-batch", "global_batch", type=COUNT, metavar="N", help="Sequences of a step over all ranks.  [default: the job's]")
    fix = click.option("--fix", multiple=True, metavar="NAME=VALUE", help=f"Only layouts with this: {', '.join((*NUMBERS, *WORDS))}; may be repeated.")
    by = click.option(
        "--objective", type=click.Choice(get_args(Objective)), default="time", show_default=True, help="Order: time of a step, memory left, cost."
    )
    top = click.option("--top", type=click.IntRange(1, 100), default=10, show_default=True, metavar="N", help="How many meshes.")
    risk = click.option("--risk", is_flag=True, help="Also layouts whose 90 % interval crosses the card.")
    explain = click.option("--explain", type=click.IntRange(min=1), metavar="N", help="Show where the time of line N goes.")
    pick = click.option("--pick", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="The line that --save writes.")
    save = click.option("--save", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write the layout as a job file.")
    return gpus(batch(fix(by(top(risk(explain(pick(save(as_json(command))))))))))


@click.command(no_args_is_help=True)
@click.argument("job")
@plan_options
def command(job: str, **options: Any) -> int:
    """Rank the layouts of a training job on a cluster: parallelism, micro-batch, recomputation.

    Every legal layout is timed; memory is asked of the ledger from the fastest on. A layout is shown if its 90 % interval stays below the card's memory.
    Layouts of one mesh that are as fast within 1 % are shown once.

    \b
    everybyte plan job.yaml --gpus 64 --global-batch 512
    everybyte plan train meta-llama/Llama-3.1-70B --framework megatron --gpu h100 --gpus 64,128 --global-batch 1024 --seq-len 8192
    everybyte plan job.yaml --fix tp=8 --fix recompute=none
    everybyte plan job.yaml --explain 1
    everybyte plan job.yaml --pick 2 --save best.yaml
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    return answer_plan(load_any(job).job(), Asked(**options))


def _of_flags() -> click.Command:
    """`plan train`."""
    flags = tuple(flag for flag in TABLES["train"] if flag.path not in OWN_FLAGS)

    @click.command("plan train", cls=JobCommand, purpose="train", no_args_is_help=True)
    @click.argument("model")
    @job_flags(flags)
    @plan_options
    def command(model: str, **options: Any) -> int:
        settings = options.pop("set_")
        given = {name: options.pop(name) for name in list(options) if name.startswith("flag_")}
        return answer_plan(start(raw_job("train", model, flags, given, settings).job()).job, Asked(**options))

    command.help = "Rank the layouts of a training job on a cluster, with the flags of `everybyte train`."
    return command


TRAIN = _of_flags()


class Asked(NamedTuple):
    """Values of `plan_options`."""

    gpus: str | None
    global_batch: int | None
    fix: tuple[str, ...]
    objective: Objective
    top: int
    risk: bool
    explain: int | None
    pick: int
    save: str | None
    as_json: bool


def answer_plan(job: Job, asked: Asked) -> int:
    """Searches, shows what was found; the exit code."""
    from everybyte.plan.layouts.search import search

    gpus = _gpus(asked.gpus, job)
    batch = asked.global_batch or _global_batch(job)
    with Progress("asking the ledger") as progress:
        found = search(job, gpus, batch, _fixed(asked.fix), asked.top, asked.objective, risk=asked.risk, tell=lambda words: setattr(progress, "words", words))
    if asked.save is not None and found.plans:
        _save(_line(found, asked.pick, "--pick"), asked.save)
    if asked.as_json:
        from everybyte.report.as_json import head, line
        from everybyte.report.plan import plan_object

        click.echo(line({**head(job.name), **plan_object(found, gpus, batch)}))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.plan import show_plan, show_time

        show_plan(open_console(), job, found, gpus, batch)
        if asked.explain is not None and found.plans:
            show_time(open_console(), _line(found, asked.explain, "--explain"))
    return FITS if found.plans else DOES_NOT_FIT


def _line(found: Found, number: int, flag: str) -> Plan:
    if number > len(found.plans):
        raise BadInput(flag, f"line {number} of {len(found.plans)}")
    return found.plans[number - 1]


def _gpus(text: str | None, job: Job) -> tuple[int, ...]:
    if text is None:
        return ((job.hardware.gpus if job.hardware else None) or 1,)
    words = [word.strip().replace("_", "") for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= MOST_GPUS for word in words):
        raise BadInput("--gpus", f"{text!r} is no number of GPUs such as 64, or several such as 64,128")
    return tuple(int(word) for word in words)


MOST_GPUS = 2**20


def _global_batch(job: Job) -> int:
    """What the job runs in a step."""
    train = job.train
    if train is None:
        return 1
    mesh, gpus = train.mesh, (job.hardware.gpus if job.hardware else None) or 1
    split = (mesh.tp or 1) * (mesh.pp or 1) * (mesh.cp or 1) if mesh is not None else 1
    return (train.micro_batch or 1) * (train.grad_accum or 1) * max(1, gpus // split)


def _fixed(texts: tuple[str, ...]) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name in NUMBERS and value.isdecimal():
            found[name] = int(value)
        elif name in WORDS and value:
            found[name] = value
        else:
            raise BadInput("--fix", f"{text!r} is not NAME=VALUE with a name of {', '.join((*NUMBERS, *WORDS))}")
    return found


def _save(plan: Plan, path: str) -> None:
    from everybyte.job.write import write_job

    write_job(plan.candidate.job, path)
    say(f"{path} holds the job: everybyte estimate {path}", to_stderr=True)

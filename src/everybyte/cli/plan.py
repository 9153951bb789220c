"""`everybyte plan JOB --gpus N`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.ending import DOES_NOT_FIT, FITS, say
from everybyte.cli.options import as_json, save
from everybyte.cli.progress import Progress
from everybyte.job import Job, write_job
from everybyte.plan.search import Objective

if TYPE_CHECKING:
    from everybyte.plan.whole import Planned


@click.command(no_args_is_help=True)
@click.argument("job")
@click.option("--gpus", "gpus", metavar="N[,M...]", help="Numbers of GPUs to plan for.  [default: the job's]")
@click.option("--objective", type=click.Choice(get_args(Objective)), default="time", show_default=True, help="What comes first.")
@click.option("--fix", multiple=True, metavar="KEY=VALUE", help="What must stay, such as tp=8 or recompute=none; may be repeated.")
@click.option("--global-batch", type=click.IntRange(min=1), metavar="N", help="Sequences of a step.  [default: the job's]")
@click.option("--top", type=click.IntRange(min=1, max=1000), default=10, show_default=True, metavar="N", help="Plans that are shown, one a mesh.")
@click.option("--explain", "explained", type=click.IntRange(min=0), default=0, metavar="N", help="Details and neighbours of the first N plans.")
@click.option("--complete", is_flag=True, help="Ask for the memory of every layout, for complete counts of what is rejected.")
@click.option("--risk", is_flag=True, help="Count on the predicted memory, not on the upper end of its 90 % interval.")
@click.option("--price", type=click.FloatRange(min=0), metavar="USD", help="Of one GPU and hour.  [default: the lowest of the catalogue, with its date]")
@save
@as_json
def command(job: str, **options: Any) -> int:
    """The fastest layouts of a training job that fit, or the cheapest.

    All layouts that are legal for the model and the cluster are compared: the axes of the mesh, uneven pipeline stages, micro-batch, recomputation, sharding,
    the types of gradients and moments, and fp8 where the job leaves the precision open and the card has it. What the job says of precision, optimizer and
    sequence length stays; so does the number of sequences of a step.

    \b
    everybyte plan job.yaml --gpus 64
    everybyte plan job.yaml --gpus 64,128,256 --objective cost --price 2.10
    everybyte plan job.yaml --gpus 64 --fix tp=8 --explain 3
    everybyte plan job.yaml --gpus 64 --save best.yaml
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    asked = Asked(**options)
    return answer_plan(load_any(job).job(), asked)


class Asked(NamedTuple):
    """The options of the command."""

    gpus: str | None
    objective: Objective
    fix: tuple[str, ...]
    global_batch: int | None
    top: int
    explained: int
    complete: bool
    risk: bool
    price: float | None
    save: str | None
    as_json: bool


def answer_plan(job: Job, asked: Asked) -> int:
    """Searches, shows what was found; the exit code."""
    planned = _planned(job, asked)
    if asked.save is not None and planned.plans:
        write_job(planned.plans[0].job, asked.save)
        say(f"wrote {asked.save}", to_stderr=True)
    if asked.as_json:
        from everybyte.report.as_json import head, line
        from everybyte.report.plan import plan_object

        click.echo(line({**head(job.name), **plan_object(planned, asked.explained)}))
    else:
        from everybyte.report.console import open_console
        from everybyte.report.plan import show_plan

        show_plan(open_console(), planned, explained=asked.explained)
    return FITS if planned.plans else DOES_NOT_FIT


def _planned(job: Job, asked: Asked) -> Planned:
    from everybyte.plan.layouts.asked import read_fixed, read_gpus
    from everybyte.plan.whole import planned

    own = job.hardware.gpus if job.hardware is not None else None
    if asked.gpus is None and not own:
        raise BadInput("--gpus", "is needed: neither the flag nor hardware.gpus says how many GPUs there are")
    gpus = read_gpus(asked.gpus) if asked.gpus is not None else (own or 1,)
    with Progress("comparing layouts", unit="layouts") as progress:

        def tell(done: int, total: int) -> None:
            progress.done, progress.total = done, total

        return planned(
            job,
            gpus,
            asked.objective,
            fixed=read_fixed(asked.fix),
            top=asked.top,
            risk=asked.risk,
            complete=asked.complete,
            price=asked.price,
            global_batch=asked.global_batch,
            tell=tell,
        )

"""`everybyte watch`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from everybyte.measure.recording.gpus import Driver


@click.command()
@click.option("--job", metavar="JOB", help="A job whose prediction stands beside each process.")
@click.option("--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.  [default: until Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look.")
def command(job: str | None, every: float, count: int | None, *, as_json: bool) -> int:
    """Show live what each process holds on each GPU.

    \b
    everybyte watch
    everybyte watch --job job.yaml --every 0.5

    Needs the NVIDIA driver and the extra [measure]. On a terminal the view renews itself; elsewhere each look is printed below the last.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.basics.errors import EverybyteError
    from everybyte.measure.recording.gpus import driver

    predicted = _predicted(job)
    with driver() as gpus:
        if isinstance(gpus, str):
            raise EverybyteError(gpus)
        _looks(gpus, predicted, every, count, as_json=as_json)
    return 0


def _predicted(job: str | None) -> int | None:
    if job is None:
        return None
    from everybyte.estimator import estimate
    from everybyte.job import load

    return estimate(load(job).job()).size("peak.device")


def _looks(gpus: Driver, predicted: int | None, every: float, count: int | None, *, as_json: bool) -> None:
    from everybyte.report.record import gpu_lines

    done = 0
    while True:
        states = gpus.states()
        if as_json:
            rows = [{**state._asdict(), "processes": {str(pid): nbytes for pid, nbytes in state.processes.items()}} for state in states]
            click.echo(json.dumps({"time": round(time.time(), 3), "predicted": predicted, "gpus": rows}))
        else:
            click.clear()
            click.echo("\n".join(line for state in states for line in gpu_lines(state, predicted)))
        done += 1
        if count is not None and done >= count:
            return
        time.sleep(every)

"""`everybyte snapshot FILE`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from everybyte.basics.errors import BadInput

if TYPE_CHECKING:
    from everybyte.measure.snapshots.read import DeviceMemory


@click.command(no_args_is_help=True)
@click.argument("file")
@click.option("--device", type=int, metavar="N", help="This device alone.  [default: all that hold memory]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(file: str, device: int | None, *, as_json: bool) -> int:
    """Show where the bytes of a PyTorch memory snapshot are.

    FILE is what torch.cuda.memory._dump_snapshot() writes (a pickle, plain or gzip), or `everybyte trace --export FILE.pickle`. Nothing in it is run.

    \b
    everybyte snapshot snapshot.pickle
    everybyte snapshot snapshot.pickle --device 1 --json

    By category, line and module, at the peak and now; what is reserved and free; lines that hold more and more; what expandable segments would change.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.cli.progress import Progress
    from everybyte.measure.snapshots.analysis import analysed
    from everybyte.measure.snapshots.read import read_snapshot
    from everybyte.report import snapshot as report
    from everybyte.report.console import open_console

    with Progress("reading the snapshot"):
        memory = _chosen(read_snapshot(file), device, file)
        found = [analysed(number, one) for number, one in memory.items()]
    if as_json:
        click.echo(json.dumps(report.as_json(found), ensure_ascii=False))
    else:
        console = open_console()
        for line in report.screen(found):
            console.print(line)
    return 0


def _chosen(memory: dict[int, DeviceMemory], device: int | None, file: str) -> dict[int, DeviceMemory]:
    """The devices that are asked for. Raises BadInput for one that the file does not have."""
    if device is None:
        return memory
    if device not in memory:
        raise BadInput("--device", f"{file} says nothing of device {device}; it has {', '.join(map(str, memory)) or 'none'}")
    return {device: memory[device]}

"""`everybyte snapshot FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everybyte.basics.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

    from everybyte.measure.snapshots.read import DeviceMemory


@click.command(no_args_is_help=True)
@click.argument("file")
@click.option("--device", type=int, metavar="N", help="This device alone.  [default: all that hold memory]")
@click.option("--job", metavar="JOB", help="The job that ran: its estimate is compared row by row, as `compare JOB FILE` does.")
@click.option("--alloc-conf", metavar="CONF", help="Also replay with this PYTORCH_CUDA_ALLOC_CONF, such as roundup_power2_divisions:4.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(file: str, device: int | None, job: str | None, alloc_conf: str | None, *, as_json: bool) -> int:
    """Show where the bytes of a PyTorch memory snapshot are.

    FILE is what torch.cuda.memory._dump_snapshot() writes (a pickle, plain or gzip), or `everybyte trace --export FILE.pickle`; or a memory timeline or chrome
    trace of torch.profiler. Nothing in it is run.

    \b
    everybyte snapshot snapshot.pickle
    everybyte snapshot snapshot.pickle --device 1 --json
    everybyte snapshot snapshot.pickle --job job.yaml
    everybyte snapshot timeline.raw.json.gz

    By category, line and module, at the peak and now; what is reserved and free; lines that hold more and more; what expandable segments would change.
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.report.console import open_console

    shown, content = _profile(file, alloc_conf) if _is_profile(file) else _snapshot(file, device, alloc_conf)
    console = open_console()
    if not as_json:
        for line in shown:
            console.print(line)
    if job is not None:
        content["comparison"] = _compared(job, file, device, as_json=as_json)
    if as_json:
        click.echo(json.dumps(content, ensure_ascii=False))
    return 0


def _is_profile(file: str) -> bool:
    from everybyte.measure.profiles.read import HEAD, is_profile

    try:
        with Path(file).open("rb") as stream:
            return is_profile(stream.read(HEAD), file)
    except (OSError, ValueError):
        return False  # the reader says what is wrong


def _profile(file: str, alloc_conf: str | None) -> tuple[Iterable[Text], dict[str, Any]]:
    from everybyte.cli.progress import Progress
    from everybyte.measure.profiles.read import read_profile
    from everybyte.report import snapshot as report

    if alloc_conf is not None:
        raise BadInput("--alloc-conf", f"{file} has no addresses and streams to replay; a memory snapshot has")
    with Progress("reading the profile"):
        found = read_profile(file)
    return report.profile_screen(found), report.profile_json(found)


def _snapshot(file: str, device: int | None, alloc_conf: str | None) -> tuple[Iterable[Text], dict[str, Any]]:
    from everybyte.allocator.settings import read_alloc_conf
    from everybyte.cli.progress import Progress
    from everybyte.measure.snapshots.analysis import analysed
    from everybyte.measure.snapshots.read import read_snapshot
    from everybyte.report import snapshot as report

    asked = read_alloc_conf(alloc_conf, "--alloc-conf") if alloc_conf is not None else None
    with Progress("reading the snapshot"):
        memory = _chosen(read_snapshot(file), device, file)
        found = [analysed(number, one, asked) for number, one in memory.items()]
    return report.screen(found), report.as_json(found)


def _compared(job: str, file: str, device: int | None, *, as_json: bool) -> dict[str, Any]:
    """The comparison of a job with the file; printed, unless it goes into the object."""
    from everybyte.cli.compare import named
    from everybyte.measure.comparing.open import opened
    from everybyte.measure.comparing.rows import compared
    from everybyte.report.comparison import comparison_object, show_comparison
    from everybyte.report.console import open_console
    from everybyte.report.differences import told_apart

    here, answer = opened(job, None, "--job")
    there, _ = opened(file, None if device is None else str(device), "--device")
    found, guilty = compared(here, there), named(answer, there)
    if not as_json:
        show_comparison(open_console(), found, "GiB", told_apart((job, ""), (file, "")), guilty)
    return comparison_object(found, guilty)


def _chosen(memory: dict[int, DeviceMemory], device: int | None, file: str) -> dict[int, DeviceMemory]:
    """The devices that are asked for. Raises BadInput for one that the file does not have."""
    if device is None:
        return memory
    if device not in memory:
        raise BadInput("--device", f"{file} says nothing of device {device}; it has {', '.join(map(str, memory)) or 'none'}")
    return {device: memory[device]}

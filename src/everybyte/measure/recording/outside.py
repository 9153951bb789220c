"""Runs a command and records it: from outside by samples, from inside by what each of its Python processes says at its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.measure.recording.gpus import Driver, driver
from everybyte.measure.recording.inside import SCHEMA
from everybyte.measure.recording.sampler import PERIOD_S, Sampler

SHIM = Path(__file__).with_name("shim")


def record(command: Sequence[str], period_s: float = PERIOD_S) -> tuple[dict[str, Any], int]:
    """(the record, the command's exit code). Raises BadInput for a command that cannot be started."""
    with tempfile.TemporaryDirectory(prefix="everybyte-record-") as folder, driver() as gpus:
        environment = {**os.environ, "EVERYBYTE_RECORD": folder, "PYTHONPATH": os.pathsep.join(filter(None, (str(SHIM), os.environ.get("PYTHONPATH"))))}
        try:
            process = subprocess.Popen(list(command), env=environment)  # noqa: S603  # the person's own command
        except OSError as error:
            raise BadInput(command[0], f"cannot be started: {error.strerror}") from None
        with Sampler(process.pid, gpus if isinstance(gpus, Driver) else None, period_s) as sampler:
            code = _wait(process)
        seen = sampler.result()
        lacks = [gpus] if isinstance(gpus, str) else []
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("*.json"))]
    return joined(ranks, seen, lacks, {"exit_code": code, "program": Path(command[0]).name}), code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code. Ctrl-C goes to the program as well, which may still save something."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)


def joined(ranks: list[dict[str, Any]], seen: dict[str, Any], lacks: list[str], run: dict[str, Any]) -> dict[str, Any]:
    """One record of all processes: the worst rank's figures, the spread over ranks, what the driver saw beside them."""
    on_device = {int(pid): peak for gpu in seen.get("gpus", []) for pid, peak in gpu["processes"].items()}
    for rank in ranks:
        if rank["pid"] in on_device:
            rank["figures"]["peak.device"] = on_device[rank["pid"]]
    worst: dict[str, int] = {}
    spread: dict[str, list[int]] = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank["figures"]):
        values = [rank["figures"][name] for rank in ranks if name in rank["figures"]]
        worst[name], spread[name] = max(values), [min(values), max(values)]
    if "peak.device" not in worst and on_device:
        worst["peak.device"] = max(on_device.values())
    if seen.get("host_peak"):
        worst["host.bytes"] = seen["host_peak"]
    said = [line for rank in ranks for line in rank.get("lacks", [])]
    return {
        "everybyte_record": SCHEMA,
        **run,
        "figures": worst,
        "spread": spread,
        "ranks": ranks,
        "seen": seen,
        "environment": ranks[0]["environment"] if ranks else {},
        "lacks": list(dict.fromkeys([*lacks, *said, *([] if ranks else ["torch's peaks: no process of the run loaded torch"])])),
    }


def merged(paths: Sequence[str | os.PathLike[str]]) -> dict[str, Any]:
    """The record of several ranks' files, as `Recorder` writes them under torchrun. Raises BadInput for a file that is none."""
    ranks = [read_record(path) for path in paths]
    return joined(ranks, {}, [], {})


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A record from its file. Raises BadInput for anything else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(str(path), f"is no record: {error}") from None
    if not isinstance(content, dict) or content.get("everybyte_record") != SCHEMA:
        raise BadInput(str(path), "is no record that `everybyte record` wrote")
    return content

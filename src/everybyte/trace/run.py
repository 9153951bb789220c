"""Starts the process of a trace, follows its progress, and reads what it saw. Whatever happens, no process is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from everybyte.basics.errors import EverybyteError
from everybyte.trace.request import Failed, Progress, Traced, TraceRequest

Told = Callable[[Progress], None]
LAST_WORDS = 2000
"""Characters of the program's own output that are kept for a message, if the process dies."""


class TraceFailed(EverybyteError):
    """The traced program failed. The first line of the message is the program's own line, where it is known."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        parts = [failed.line and f"{failed.line}\n", failed.message, failed.help and f"\na way round: {failed.help}"]
        super().__init__("".join(part for part in parts if part))


def run(asked: TraceRequest, told: Told | None = None, timeout: float | None = None) -> Traced:
    """Runs a trace in a process of its own; `told` hears of its progress. Raises TraceFailed for a fault of the program, EverybyteError if the process dies."""
    with tempfile.TemporaryDirectory(prefix="everybyte-trace-") as folder:
        result = Path(folder) / "result"
        reading, writing = os.pipe()
        process = start(result, writing)
        os.close(writing)
        listener = threading.Thread(target=_listen, args=(reading, told), daemon=True)
        listener.start()
        try:
            return _result(process, result, asked, timeout)
        finally:
            _end(process)
            listener.join()  # the pipe has ended with the process


def start(result: Path, ear: int) -> subprocess.Popen[bytes]:
    """The process of a trace, which waits for its request. It has a session of its own: the program's children go with it."""
    command = [sys.executable, "-m", "everybyte.trace.worker", str(result), str(ear)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(ear,), start_new_session=True)


def run_ranks(asked: TraceRequest, ranks: Sequence[int], told: Told | None = None, timeout: float | None = None) -> tuple[tuple[TraceRequest, Traced], ...]:
    """Runs a trace for each of the ranks, one after another: each wants a core for itself, and memory."""
    wanted = [msgspec.structs.replace(asked, rank=rank) for rank in ranks]
    return tuple((one, run(one, told, timeout)) for one in wanted)


def _result(process: subprocess.Popen[bytes], result: Path, asked: TraceRequest, timeout: float | None) -> Traced:
    try:
        _, words = process.communicate(msgspec.json.encode(asked), timeout=timeout)
    except subprocess.TimeoutExpired:
        raise EverybyteError(f"the trace took longer than {timeout:g} s and was stopped; trace fewer steps or layers, or give it more time") from None
    if not result.exists():
        last = words.decode(errors="replace")[-LAST_WORDS:].strip().splitlines()
        how = f"was ended by signal {-process.returncode}" if process.returncode < 0 else f"ended with {process.returncode}"
        raise EverybyteError(f"the process of the trace {how}" + (f": {last[-1]}" if last else ""))
    found = msgspec.msgpack.decode(result.read_bytes(), type=Traced | Failed)
    if isinstance(found, Failed):
        raise TraceFailed(found)
    return found


def _listen(reading: int, told: Told | None) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if told is not None:
                told(msgspec.json.decode(line, type=Progress))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

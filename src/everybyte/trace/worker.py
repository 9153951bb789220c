"""The process that runs a traced program: `python -m everybyte.trace.worker RESULT FD`. It reads what is asked from standard input, tells its progress on the
file descriptor FD, and writes what it saw to the file RESULT; the program's own output goes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from everybyte.basics.errors import EverybyteError
from everybyte.basics.tracing import TRACING
from everybyte.trace.asked import Asked, BirthRow, Failed, Mark, Progress, Traced

PAUSE_S = 0.1
"""Between two words on progress."""
MOST_BIRTHS = 5_000_000
"""A step of the largest models makes some 100,000 tensors."""


class EndlessProgram(EverybyteError):
    """The program makes tensors without end."""


class Teller:
    """Hears of every tensor that is born; tells now and then how far the program is, and ends one that has no end."""

    def __init__(self, steps: int, ear: BinaryIO) -> None:
        self.step, self.steps, self._ear, self._told = 0, steps, ear, 0.0

    def __call__(self, recorder: Any) -> None:
        """One more tensor was born."""
        births = len(recorder.births)
        if births > MOST_BIRTHS:
            raise EndlessProgram(f"the program has made {births:,} tensors and is still in step {self.step} of {self.steps}; trace a shorter step")
        now = time.monotonic()
        if now - self._told > PAUSE_S:
            self._told = now
            birth = recorder.births[-1]
            words = Progress(step=self.step, steps=self.steps, phase=birth.phase, module=birth.module, operations=recorder.operations)
            with contextlib.suppress(BrokenPipeError):
                self._ear.write(msgspec.json.encode(words) + b"\n")


def main() -> int:
    """Runs one trace."""
    os.environ[TRACING] = "1"
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    found: Traced | Failed
    with contextlib.redirect_stdout(sys.stderr), os.fdopen(int(sys.argv[2]), "wb", buffering=0) as ear:
        try:
            found = trace(asked, Teller(asked.steps, ear))
        except EverybyteError as error:
            found = Failed(message=str(error))
    Path(sys.argv[1]).write_bytes(msgspec.msgpack.encode(found))
    return 0


def trace(asked: Asked, teller: Teller) -> Traced | Failed:
    """Runs the target under fake tensors. Raises EverybyteError where it cannot even start; Failed is a fault of the program."""
    if asked.device == "cuda":
        from everybyte.trace.shim import load

        load(max(asked.world, 1))
    from everybyte.trace import faults
    from everybyte.trace.program import program_of

    sys.path.insert(0, os.path.abspath(asked.folder))
    program = program_of(asked)
    try:
        return _run(asked, program, teller)
    except EverybyteError:
        raise
    except Exception as fault:  # noqa: BLE001  # whatever the program raises is told in its own terms
        return faults.told(fault)


def _run(asked: Asked, program: Callable[[], Callable[[], Any]], teller: Teller) -> Traced:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from everybyte.trace.branches import real_branches
    from everybyte.trace.device import current_stream_id
    from everybyte.trace.hidden import Hidden
    from everybyte.trace.record import Recorder
    from everybyte.trace.watch import Watch

    started = time.monotonic()
    marks: list[Mark] = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        recorder = Recorder(asked.device, current_stream_id, Hidden(_gpu(asked)) if asked.device == "cuda" else lambda *_: ())
        _install(asked, recorder)
        recorder.watchers.append(teller)
        with real_branches(asked.device), recorder, Watch(recorder).modules():
            step = program()
            for number in range(1, asked.steps + 1):
                marks.append(Mark(f"step {number}", len(recorder.events)))
                teller.step = number
                step()
            marks.append(Mark("end", len(recorder.events)))
    births = tuple(_row(birth) for birth in recorder.births)
    return Traced(births=births, events=tuple(recorder.events), marks=tuple(marks), operations=recorder.operations, seconds=time.monotonic() - started)


def _install(asked: Asked, recorder: Any) -> None:
    if asked.device != "cuda":
        return
    from everybyte.trace import attention
    from everybyte.trace.device import Memory, install

    gpu = _gpu(asked)
    install(gpu, max(asked.world, 1), Memory(lambda: recorder.current, lambda: recorder.peak, recorder.forget_peak))
    attention.install(gpu.compute_capability)


def _gpu(asked: Asked) -> Any:
    from everybyte.catalog.gpus import find_gpu

    return find_gpu(asked.gpu, "--gpu")


def _row(birth: Any) -> BirthRow:
    return BirthRow(**{name: getattr(birth, name) for name in BirthRow.__struct_fields__})


if __name__ == "__main__":
    sys.exit(main())

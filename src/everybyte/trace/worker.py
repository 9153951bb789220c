"""The process that runs a traced program: `python -m everybyte.trace.worker RESULT FD`. It reads what is asked from standard input, tells its progress on the
file descriptor FD, and writes what it saw to the file RESULT; the program's own output goes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from everybyte.basics.errors import EverybyteError
from everybyte.basics.tracing import TRACING
from everybyte.rules.communication.communicators import Communicator
from everybyte.trace.recording.clock import Clock, EnoughSteps
from everybyte.trace.request import BirthRow, Failed, Traced, TraceRequest


def main() -> int:
    """Runs one trace."""
    os.environ[TRACING] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    result, ear_fd = sys.argv[1:]  # a script gets arguments of its own
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=TraceRequest)
    found: Traced | Failed
    with contextlib.redirect_stdout(sys.stderr), os.fdopen(int(ear_fd), "wb", buffering=0) as ear:
        try:
            found = trace(asked, ear)
        except EverybyteError as error:
            found = Failed(message=str(error))
    Path(result).write_bytes(msgspec.msgpack.encode(found))
    return 0


def trace(asked: TraceRequest, ear: BinaryIO | None = None) -> Traced | Failed:
    """Runs the target under fake tensors. Raises EverybyteError where it cannot even start; Failed is a fault of the program."""
    if asked.device == "cuda":
        from everybyte.trace.device.launch import gpus_of_node
        from everybyte.trace.shim import load

        load(gpus_of_node(asked.world))
    from everybyte.trace import faults
    from everybyte.trace.program import program_of

    sys.path.insert(0, os.path.abspath(asked.folder))
    run = program_of(asked)
    try:
        return _run(asked, run, ear)
    except EverybyteError:
        raise
    except Exception as fault:  # noqa: BLE001  # whatever the program raises is told in its own terms
        return faults.told(fault)


def _run(asked: TraceRequest, run: Callable[[Clock], None], ear: BinaryIO | None) -> Traced:
    import torch

    from everybyte.trace.device.cuda import DevicelessMode, current_stream_id
    from everybyte.trace.device.hidden import Hidden
    from everybyte.trace.patching.branches import real_branches
    from everybyte.trace.patching.surroundings import Surroundings
    from everybyte.trace.recording.record import Recorder
    from everybyte.trace.recording.watch import Watch

    surroundings = Surroundings()
    started = time.monotonic()
    with DevicelessMode(allow_non_fake_inputs=True):
        recorder = Recorder(asked.device, current_stream_id, Hidden(_gpu(asked)) if asked.device == "cuda" else lambda *_: ())
        _install(asked, recorder)
        watch = Watch(recorder)
        clock = Clock(recorder, asked.steps, watch.layers, ear)
        one_thread = torch.autograd.set_multithreading_enabled(False)  # torch keeps for each thread how new tensors of numbers become fake
        ranks = _ranks(asked, recorder)
        with one_thread, real_branches(asked.device), surroundings.met(), ranks as communicators, recorder, watch.modules():
            with contextlib.suppress(EnoughSteps):
                run(clock)
            groups = communicators()
    births = tuple(_row(birth) for birth in recorder.births)
    return Traced(
        births=births,
        events=tuple(recorder.events),
        marks=clock.all_marks(),
        operations=recorder.operations,
        seconds=time.monotonic() - started,
        stepping=tuple(recorder.stepping),
        late=recorder.behind.late(recorder.events),
        groups=groups,
        parameters=watch.parameters,
        trainable=watch.trainable,
        notes=surroundings.notes(),
    )


@contextlib.contextmanager
def _ranks(asked: TraceRequest, recorder: Any) -> Iterator[Callable[[], tuple[Communicator, ...]]]:
    """While entered, the program is one rank of many; afterwards, which communicators it has used."""
    if asked.world == 1:
        yield lambda: ()
        return
    from everybyte.trace.device.cuda import watched_streams
    from everybyte.trace.ranks.distributed import Groups, process_groups
    from everybyte.trace.ranks.fsdp_limiter import limited_frees
    from everybyte.trace.ranks.gathered import buffers_of_wrappers
    from everybyte.trace.ranks.neighbours import Neighbours
    from everybyte.trace.ranks.parallel import parallel_wrappers

    groups, neighbours = Groups(asked.rank, asked.world), Neighbours(asked)
    wrappers = parallel_wrappers(told=neighbours.told, asks=neighbours.asks)
    buffers, frees = buffers_of_wrappers(recorder), limited_frees(recorder)
    recorder.collective = groups.answer
    # what another stream of the program's own uses is taken to be done when it is freed, as on a GPU that keeps up with the program
    with process_groups(asked.rank, asked.world), wrappers, buffers, frees, watched_streams(lambda *_: None):
        yield groups.communicators


def _install(asked: TraceRequest, recorder: Any) -> None:
    if asked.device != "cuda":
        return
    from everybyte.trace.device import attention
    from everybyte.trace.device.cuda import Memory, install
    from everybyte.trace.device.launch import gpus_of_node

    gpu = _gpu(asked)
    install(gpu, gpus_of_node(asked.world), Memory(lambda: recorder.current, lambda: recorder.peak, recorder.forget_peak))
    attention.install(gpu.compute_capability)


def _gpu(asked: TraceRequest) -> Any:
    from everybyte.catalog.gpus import find_gpu

    return find_gpu(asked.gpu, "--gpu")


def _row(birth: Any) -> BirthRow:
    return BirthRow(**{name: getattr(birth, name) for name in BirthRow.__struct_fields__})


if __name__ == "__main__":
    sys.exit(main())

"""Processes of traces that start with their imports done, for tests that ask what a trace says and not how its process starts.

Each trace has a process of its own, of which four fifths go into importing torch and transformers. Here one process imports them once for a session, and
every trace is a fork of it. Tests marked `cold` start processes as a user does.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver, reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from everybyte.trace import run


@contextlib.contextmanager
def warm_traces() -> Iterator[None]:
    """While entered, traces start as forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "start", WarmProcess)
        yield


ROOT = Path(__file__).parents[2]
PRELOADED = "tests.trace.preloaded"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([PRELOADED])


class Passed:
    """A file descriptor that a child gets as its own number of it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.descriptor),)


def _received(passed: Any) -> int:
    return int(passed.detach())


class WarmProcess:
    """What `everybyte.trace.run` needs of a subprocess: it starts with the request, as `communicate` gives it."""

    def __init__(self, result: Path, ear: int) -> None:
        self.result, self.ear = result, os.dup(ear)
        self.process: BaseProcess | None = None
        self.said = b""

    @property
    def pid(self) -> int:
        """The process, which leads a session of its own."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int:
        """As a subprocess has it."""
        assert self.process is not None
        assert self.process.exitcode is not None
        return self.process.exitcode

    def communicate(self, asked: bytes | None = None, timeout: float | None = None) -> tuple[None, bytes]:
        """Starts the trace, waits for its end, and gives what it wrote to standard error."""
        if asked is not None:
            with tempfile.TemporaryFile() as words:
                self._start(asked, words.fileno())
                self._wait(timeout)
                words.seek(0)
                self.said = words.read()
        return None, self.said

    def _start(self, asked: bytes, words: int) -> None:
        given = (str(self.result), Passed(self.ear), Passed(words), asked, os.getcwd(), dict(os.environ))
        self.process = FORKS.Process(target=trace_one, args=given)
        with contextlib.chdir(ROOT):  # the process behind all forks finds its imports from where it starts
            forkserver.ensure_running()
        self.process.start()
        os.close(self.ear)

    def _wait(self, timeout: float | None) -> None:
        assert self.process is not None
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("trace", timeout or 0)


def trace_one(result: str, ear: int, words: int, asked: bytes, folder: str, environment: dict[str, str]) -> None:
    """Runs one trace in a fork, as the worker's own process does."""
    importlib.import_module(PRELOADED)  # done already, in the process that this is a fork of
    from everybyte.basics.tracing import TRACING
    from everybyte.trace import shim, worker

    os.setsid()
    os.chdir(folder)
    os.environ.update(environment | {TRACING: "1"})
    os.dup2(words, 2)
    sys.stdin = io.TextIOWrapper(io.BytesIO(asked))
    sys.argv = [worker.__file__, result, str(ear)]
    shim.load = count  # the fake device is there already
    sys.exit(worker.main())


def count(gpus: int = 1) -> None:
    """Says how many fake GPUs there are."""
    import torch

    from everybyte.trace.shim import built

    ctypes.CDLL(str(built(Path(torch.__file__).parent))).everybyte_count_fake_cuda(gpus)

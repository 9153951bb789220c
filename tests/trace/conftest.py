"""One traced program for all tests that only read a trace."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trace.warm import warm_traces

from everybyte.trace.request import Traced, TraceRequest
from everybyte.trace.run import run

PROGRAMS = Path(__file__).with_name("programs")
TOY = f"{PROGRAMS / 'toy.py'}"


@pytest.fixture(scope="session")
def compiler() -> None:
    """Tests that need the fake device are skipped where nothing compiles it."""
    if shutil.which("c++") is None and shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler: the fake device is compiled once for each torch")


@pytest.fixture(scope="session")
def toy() -> str:
    """The file of the programs."""
    return TOY


@pytest.fixture(scope="session")
def traced(compiler: None) -> Traced:
    """Two steps of a small transformer on a fake RTX 4090."""
    with warm_traces():
        return run(TraceRequest(target=f"{TOY}:build", gpu="rtx-4090"))


@pytest.fixture(autouse=True)
def warm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Traces are forks of a process that has imported torch and transformers, but for tests marked `cold`."""
    if request.node.get_closest_marker("cold"):
        yield
        return
    with warm_traces():
        yield

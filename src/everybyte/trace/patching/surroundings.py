"""What a program meets in a trace instead of values, compilers, kernels and checkpoints. Each part says afterwards what was taken for granted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from everybyte.trace.device.compiled import Compiled
from everybyte.trace.device.disk import Disk
from everybyte.trace.device.kernels import Launches
from everybyte.trace.patching.pretrained import Pretrained
from everybyte.trace.values.assumed_values import healthy
from everybyte.trace.values.unknown_scalars import Read


class Part(Protocol):
    """Answers in the place of something that fake tensors do not have."""

    def met(self) -> AbstractContextManager[None]:
        """While entered, the program meets this part."""

    def notes(self) -> tuple[str, ...]:
        """What the answer says of it."""


class Surroundings:
    """All parts."""

    def __init__(self) -> None:
        self._parts: tuple[Part, ...] = (Read(), Compiled(), Launches(), Disk(), Pretrained())

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """While entered, the program meets all of them."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(healthy())
            for part in self._parts:
                stack.enter_context(part.met())
            yield

    def notes(self) -> tuple[str, ...]:
        """What the answer says of them."""
        return tuple(note for part in self._parts for note in part.notes())

"""Kernels that a program has written in Triton: they write into tensors that the program has made, so that a launch, which allocates nothing, does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everybyte.trace.on_import import when_imported

NOTE = "kernels written in Triton are not run: a launch allocates nothing but what the program has made for it"


class Launches:
    """Hears whether kernels of Triton are launched."""

    def __init__(self) -> None:
        self.seen = False

    def skipped(self) -> None:
        """From now on launches do nothing, whenever the program imports Triton. Autotuning, which would run a kernel to choose its blocks, is a launch too."""
        when_imported("triton.runtime.jit", self._skip)

    def notes(self) -> tuple[str, ...]:
        """What the answer says of it."""
        return (NOTE,) if self.seen else ()

    def _skip(self, jit: Any) -> None:
        jit.KernelInterface.__getitem__ = self._launch

    def _launch(self, *grid: object) -> Callable[..., None]:
        self.seen = True
        return lambda *_, **__: None

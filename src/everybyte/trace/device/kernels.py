"""Kernels that a program has written in Triton: they write into tensors that the program has made, so that a launch, which allocates nothing, does nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from everybyte.trace.hooks.on_import import patched
from everybyte.trace.hooks.patches import replaced

NOTE = "kernels written in Triton are not run: a launch allocates nothing but what the program has made for it"


class Launches:
    """Hears whether kernels of Triton are launched."""

    def __init__(self) -> None:
        self.seen = False

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """While entered, launches do nothing. Autotuning, which would run a kernel to choose its blocks, is a launch too."""
        with patched("triton.runtime.jit", lambda jit: replaced(jit.KernelInterface, __getitem__=self._launch)):
            yield

    def notes(self) -> tuple[str, ...]:
        """What the answer says of it."""
        return (NOTE,) if self.seen else ()

    def _launch(self, *_: object) -> Callable[..., None]:
        self.seen = True
        return lambda *_, **__: None

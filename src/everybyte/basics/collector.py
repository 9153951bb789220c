"""Python's collector of cycles, paused while many values are made that cannot be part of one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage is looked for inside. It would be a third of the time in which tens of thousands of small tuples are made: each few hundred of them wake
    it, and it walks through everything that is kept."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

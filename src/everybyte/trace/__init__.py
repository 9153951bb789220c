"""Runs real PyTorch code on fake tensors and records every allocation.

`everybyte.trace("train.py:build")` is the function of `trace.ask`: this package can be called, since a person who writes `everybyte.trace` means that.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everybyte.ledger.answer import Answer


class _CalledModule(ModuleType):
    """This package, callable."""

    def __call__(self, target: Any, **options: Any) -> Answer:
        """What `trace.ask.trace` does."""
        from everybyte.trace.api import trace

        return trace(target, **options)


sys.modules[__name__].__class__ = _CalledModule

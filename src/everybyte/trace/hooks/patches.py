"""Replaces attributes of modules and classes for a while."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """While entered, the attributes of a module or class are these; what it inherits is inherited again afterwards."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


@contextlib.contextmanager
def replaced_everywhere(function: Any, value: Any) -> Iterator[None]:
    """While entered, a function is another one, also in modules that have imported it by its name."""
    name = function.__name__
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__dict__", {}).get(name) is function]
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(replaced(module, **{name: value}))
        yield

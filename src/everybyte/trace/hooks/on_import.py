"""Acts on a module when the program imports it: what a program does not use is not loaded for its sake."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, act: Callable[[Any], None]) -> Callable[[], None]:
    """Calls `act(module)` now, if the module is loaded already, or as soon as it is. What is returned gives up waiting."""
    if name in sys.modules:
        act(sys.modules[name])
        return lambda: None
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None


@contextlib.contextmanager
def patched(name: str, patch: Callable[[Any], AbstractContextManager[None]]) -> Iterator[None]:
    """While entered, a module is patched, from when the program imports it on."""
    with contextlib.ExitStack() as stack:
        stack.callback(when_imported(name, lambda module: stack.enter_context(patch(module))))
        yield


class _Finder(MetaPathFinder):
    """Finds one module, once, as the other finders do, and has its loader call back."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self.name, self.act = name, act

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the module that is waited for."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.act)
        return spec


class _Loader(Loader):
    """A loader that calls back when the module is there."""

    def __init__(self, loader: Loader, act: Callable[[Any], None]) -> None:
        self.loader, self.act = loader, act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does; then the call."""
        self.loader.exec_module(module)
        self.act(module)

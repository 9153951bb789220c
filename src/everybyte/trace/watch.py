"""Says what the storages of a program are: the parameters and inputs of its modules, gradients, states of its optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from everybyte.trace.record import Recorder


class Watch:
    """Learns of a module when it is called for the first time: no program has to say which its model is."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._known: WeakSet[torch.nn.Module] = WeakSet()
        self._depth = 0

    @contextlib.contextmanager
    def modules(self) -> Iterator[None]:
        """While entered, the parameters, buffers, gradients and inputs of every module that is called are noted."""
        hook = register_module_forward_pre_hook(self._called)
        try:
            yield
        finally:
            hook.remove()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if module in self._known:
            return
        if self.recorder.outermost():
            for value in tree_leaves(args):
                if isinstance(value, torch.Tensor) and not value.requires_grad:
                    self.recorder.note(value, "input")
        root = type(module).__name__
        for path, inner in module.named_modules():
            self._known.add(inner)
            place = f"{root}.{path}" if path else root
            for tensor in (*inner.parameters(recurse=False), *inner.buffers(recurse=False)):
                self.recorder.note(tensor, "parameter", place)
            for parameter in inner.parameters(recurse=False):
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.register_post_accumulate_grad_hook(self._noting(place))

    def _noting(self, place: str) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.recorder.note(parameter.grad, "gradient", place)

        return accumulated

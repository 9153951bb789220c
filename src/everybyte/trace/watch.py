"""Says what the storages of a program are: the parameters and inputs of its modules, gradients, what one layer hands to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves

from everybyte.trace.asked import BUFFER
from everybyte.trace.layers import Layers
from everybyte.trace.places import takes_over
from everybyte.trace.record import Recorder

HIDDEN_STATES = "hidden_states"
"""How layers of transformers call what they are given, where that is named."""


class Watch:
    """Learns of a module when it is called for the first time: no program has to say which its model is."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.layers = recorder, Layers()
        self._paths: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._depth = 0

    @contextlib.contextmanager
    def modules(self) -> Iterator[None]:
        """While entered, the parameters, buffers, gradients and inputs of every module that is called are noted."""
        before = torch.nn.Module.__call__
        watch = self

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            watch._enters(module, args, kwargs)
            watch._depth += 1
            try:
                return before(module, *args, **kwargs)
            finally:
                watch._depth -= 1

        torch.nn.Module.__call__ = called
        try:
            yield
        finally:
            torch.nn.Module.__call__ = before

    def _enters(self, module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if not self._depth:
            self._inputs((args, dict(kwargs)))
        if module not in self._paths:
            self._meet(module)
        if takes_over(self._paths[module]):
            self._given(self._paths[module], args[0] if args else kwargs.get(HIDDEN_STATES))

    def _inputs(self, values: Any) -> None:
        """What the outermost module is given, and no module made."""
        for value in tree_leaves(values):
            if isinstance(value, torch.Tensor) and not value.requires_grad and not any(birth.module for birth in self.recorder.births_of(value)):
                self.recorder.note(value, "input")

    def _given(self, path: str, value: Any) -> None:
        for birth in self.recorder.births_of(value) if isinstance(value, torch.Tensor) else ():
            if not birth.category:
                birth.given = path

    def _meet(self, module: torch.nn.Module) -> None:
        """Notes the module's parameters; of a weight that two modules share, the first says where it belongs."""
        root = type(module).__name__
        for path, inner in module.named_modules():
            place = self._paths[inner] = f"{root}.{path}" if path else root
            self.layers.meet(place)
            for tensor in (*inner.parameters(recurse=False), *inner.buffers(recurse=False)):
                if not any(birth.category in ("parameter", BUFFER) for birth in self.recorder.births_of(tensor)):
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    self.recorder.note(tensor, "parameter" if is_parameter else BUFFER, place)
                    if is_parameter and tensor.requires_grad and tensor.is_leaf:
                        tensor.register_post_accumulate_grad_hook(self._noting(place))

    def _noting(self, place: str) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.recorder.note(parameter.grad, "gradient", place)

        return accumulated

"""Says what the storages of a program are: the parameters and inputs of its modules, gradients, what one layer hands to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from everybyte.trace.recording.layers import Layers
from everybyte.trace.recording.module_paths import home_of, takes_over
from everybyte.trace.recording.record import Recorder
from everybyte.trace.request import BUFFER

HIDDEN_STATES = "hidden_states"
"""How layers of transformers call what they are given, where that is named."""


class Watch:
    """Learns of a module when it is called for the first time: no program has to say which its model is."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.layers = recorder, Layers()
        self._paths: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._depth = 0
        self._counted = WeakIdKeyDictionary()
        self.parameters = self.trainable = 0
        """Numbers of the whole model, wherever they lie: of what other ranks hold too."""

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
            for name, tensor in (*_flat(inner), *inner.named_parameters(recurse=False), *inner.named_buffers(recurse=False)):
                home = home_of(place, name)
                if not any(birth.category in ("parameter", BUFFER) for birth in self.recorder.births_of(tensor)):
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    self.recorder.note(tensor, "parameter" if is_parameter else BUFFER, home)
                    if is_parameter:
                        self._count(tensor)
                    if is_parameter and tensor.requires_grad and tensor.is_leaf:
                        tensor.register_post_accumulate_grad_hook(self._noting(home))

    def _count(self, parameter: torch.Tensor) -> None:
        if parameter not in self._counted:
            self._counted[parameter] = True
            whole = _numbers_of(parameter)
            self.parameters += whole
            self.trainable += whole * parameter.requires_grad

    def _noting(self, place: str) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.recorder.note(parameter.grad, "gradient", place)

        return accumulated


def _numbers_of(parameter: torch.Tensor) -> int:
    """How many numbers a parameter stands for: a DTensor for those of all its shards, FSDP1's row for those that it holds, a weight that bitsandbytes has
    packed for those that it was."""
    packed = getattr(parameter, "quant_state", None)
    if packed is not None:
        return prod(packed.shape)
    return sum(getattr(parameter, "_numels", (parameter.numel(),)))


def _flat(module: torch.nn.Module) -> tuple[tuple[str, torch.Tensor], ...]:
    """Where FullyShardedDataParallel keeps the parameters of a module in a row: with use_orig_params the module has views of it alone."""
    handle = getattr(module, "_handle", None)
    return (("flat_param", handle.flat_param),) if isinstance(handle, FlatParamHandle) else ()

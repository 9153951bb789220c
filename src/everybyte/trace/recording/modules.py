"""Which module of the program is running, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch.autograd.graph import _MultiHandle, get_gradient_edge, register_multi_grad_hook
from torch.distributed._tools import mod_tracker
from torch.distributed._tools.mod_tracker import ModTracker

from everybyte.trace.hooks.patches import replaced

OUTERMOST = "Global"
"""How torch's tracker of modules calls the program outside all modules."""


class Modules(ModTracker):  # type: ignore[misc]  # torch is not checked
    """torch's tracker of modules. The hooks that it hangs on tensors hold their graph in a circle for ever: here they are taken off when backward is done."""

    def innermost(self) -> str:
        """The path of the module that is running; empty outside all modules."""
        return max((name for name in self.parents if name != OUTERMOST), key=len, default="")

    def __enter__(self) -> Self:
        super().__enter__()
        self._hooks = contextlib.ExitStack()
        self._hooks.enter_context(replaced(mod_tracker, register_multi_grad_hook=self._hook))
        return self

    def __exit__(self, *args: object) -> None:
        self._hooks.close()
        super().__exit__(*args)

    def _hook(self, tensors: Any, told: Any, *, mode: Any = "all") -> None:
        """Instead of torch.autograd.graph.register_multi_grad_hook, which keeps the gradients of a module's inputs until the last one is there."""
        hung = register_multi_grad_hook(tensors, told, mode=mode) if mode == "any" else _after_all(tensors, told)
        self._post_bw_callbacks_to_enqueue.append(hung.remove)


def _after_all(tensors: Sequence[torch.Tensor], told: Callable[[], None]) -> _MultiHandle:
    """Calls `told` when all gradients have come that backward computes; it holds none of them."""
    nodes = [get_gradient_edge(tensor).node for tensor in tensors]
    came = 0

    def one_came(_: torch.Tensor) -> None:
        nonlocal came
        came += 1
        if came == sum(map(_comes, nodes)):
            came = 0
            told()

    return _MultiHandle(tuple(tensor.register_hook(one_came) for tensor in tensors))


def _comes(node: Any) -> bool:
    """Whether backward computes the gradient of a node. torch.autograd.grad does not say it of leaves: they are what it was asked for."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return True

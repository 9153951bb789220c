"""DistributedDataParallel alone: its reducer is C++ and takes its buckets through the dispatcher, so that they are seen; what it tells other ranks are whole
numbers that it reads again, and these stay real."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import distributed as ddp
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from everybyte.trace.hooks.patches import replaced
from everybyte.trace.ranks.pipelines import Done

HOOKS = {BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook, BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook}
"""The hooks in Python that do what the built-in ones do."""
NEW_ENOUGH = {"cuda": "11.0"}, (2, 10)
"""The CUDA and NCCL that bf16_compress_hook asks for."""


class _Numbers(TorchDispatchMode):  # type: ignore[misc]  # torch is not checked
    """While entered, whole numbers of 32 bits are real and lie on the CPU: the reducer's lists of buckets, and of the parameters that were used."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d" or not (kwargs.get("dtype") is torch.int32 or _whole(args)):
            return func(*args, **kwargs)
        with _disable_current_modes():
            return func(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})


def _whole(args: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    return bool(tensors) and all(one.dtype is torch.int32 and not isinstance(one, FakeTensor) for one in tensors)


def _with_numbers(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with _Numbers():
            return method(*args)

    return run


@contextlib.contextmanager
def replicas() -> Iterator[None]:
    """While entered, DistributedDataParallel works under fake tensors as on GPUs, except that shapes are not compared between ranks before the first step."""
    model, reducer = ddp.DistributedDataParallel, dist.Reducer
    forward, check, reduce = model._pre_forward, model._check_comm_hook, dist.all_reduce

    def pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self._comm_hooks:
            # C++'s own hook reads the result of the process group, and a fake group has none
            self._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
        return forward(self, *inputs, **kwargs)

    def check_comm_hook(self: Any, hook: Any) -> None:
        versions, nccl = NEW_ENOUGH
        with replaced(torch.version, **versions), replaced(torch.cuda.nccl, version=lambda: nccl):
            check(self, hook)

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        done = reduce(tensor, *args, **kwargs)
        return None if done is None else Done([tensor])

    with (
        replaced(ddp, _verify_param_shape_across_processes=lambda *_, **__: None),
        replaced(
            model,
            _pre_forward=pre_forward,
            _check_comm_hook=check_comm_hook,
            _register_builtin_comm_hook=lambda self, kind: self.register_comm_hook(None, HOOKS[kind]),
        ),
        replaced(reducer, **{name: _with_numbers(getattr(reducer, name)) for name in ("__init__", "_rebuild_buckets", "_set_static_graph")}),
        replaced(dist, all_reduce=all_reduce),
    ):
        yield

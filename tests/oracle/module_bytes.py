"""What one module of PyTorch really keeps for backward, against our account of the same layer: tensors, shapes and bytes, on the CPU."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.network import write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Dims, Point

Sizes = Counter[int]
"""How many storages of each size."""


class _Holder:
    """Stands for a saved tensor in the graph: it dies with the node that saved it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def module_keeps(module: torch.nn.Module, call: Callable[[], Any], amp: bool = False, outside: tuple[torch.Tensor, ...] = ()) -> Sizes:
    """Sizes of the storages that the graph of `call` keeps; parameters, buffers and `outside` tensors left out."""
    known = {x.untyped_storage().data_ptr() for x in (*module.parameters(), *module.buffers(), *outside)}
    alive: weakref.WeakSet[_Holder] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _Holder:
        holder = _Holder(tensor)
        alive.add(holder)
        return holder

    with saved_tensors_hooks(pack, lambda holder: holder.tensor), torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        out = call()
    gc.collect()
    found = {}
    for holder in alive:
        storage = holder.tensor.untyped_storage()
        if storage.data_ptr() not in known and storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
    del out
    return Counter(found.values())


def layer_keeps(layer: Any, dims: Dims, batch: Batch, amp: bool = False, *, trainable: tuple[str, ...] = ("*",), attention: str = "sdpa") -> Sizes:
    """The same by our account."""
    stream = FP32 if amp else BF16
    kernels = Kernels(device="cpu", attention=attention)  # type: ignore[arg-type]
    setup = Setup(weights=stream, compute=BF16 if amp else None, kernels=kernels, single=batch.b == 1, trainable=trainable)
    point = Point(batch)
    return Counter(size for s in write(layer, setup, dims, stream).tally.kept if (size := s.size.at(point)))


def total(sizes: Sizes) -> int:
    """Bytes in all."""
    return sum(size * count for size, count in sizes.items())


def difference(measured: Sizes, ours: Sizes) -> str:
    """What one has and the other has not, for a message."""
    return f"only measured {dict(measured - ours)}, only ours {dict(ours - measured)}"

"""What PyTorch really keeps for backward: bytes of living saved tensors of one decoder layer, on the CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point

torch.set_num_threads(1)  # tensors are small, and threads wait for one another longer than they work

Kept = dict[tuple[tuple[int, ...], str], int]


class _Holder:
    """Stands for a saved tensor in the graph: it dies with the node that saved it. It holds the storage alone, as a tensor would hold the graph."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = tensor.untyped_storage()
        self.shape, self.dtype = tuple(tensor.shape), str(tensor.dtype)


def kept_by(model: torch.nn.Module, ids: torch.Tensor, amp: bool, **inputs: Any) -> dict[int, tuple[int, tuple[int, ...], str]]:
    """Storage -> (bytes, shape, dtype) of every tensor that a node reachable from the output keeps; parameters, buffers and ids left out."""
    outside = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers(), ids)}
    alive: weakref.WeakSet[_Holder] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _Holder:
        holder = _Holder(tensor)
        alive.add(holder)
        return holder

    with saved_tensors_hooks(pack, lambda holder: holder.storage), torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        out = model(input_ids=ids, use_cache=False, **inputs)
    gc.collect()
    found = {}
    for holder in alive:
        if holder.storage.data_ptr() not in outside and holder.storage.nbytes():
            found[holder.storage.data_ptr()] = (holder.storage.nbytes(), holder.shape, holder.dtype)
    del out
    return found


def layer_bytes(make: Callable[[int], torch.nn.Module], b: int, s: int, amp: bool = False, period: int = 1) -> tuple[int, Kept]:
    """Bytes that `period` more layers keep, and how much of it by shape and type. `make(layers)` gives the model."""
    totals, shapes = [], []
    gc.freeze()  # collections look at what the test makes alone
    for layers in (period, 2 * period):
        torch.manual_seed(0)
        model = make(layers)
        ids = torch.randint(0, model.config.get_text_config().vocab_size, (b, s))
        found = kept_by(model.train(), ids, amp)
        totals.append(sum(size for size, _, _ in found.values()))
        by_shape: Kept = {}
        for size, shape, dtype in found.values():
            by_shape[shape, dtype] = by_shape.get((shape, dtype), 0) + size
        shapes.append(by_shape)
        del model, found
        gc.collect()
    more = {key: size - shapes[0].get(key, 0) for key, size in shapes[1].items() if size != shapes[0].get(key, 0)}
    return totals[1] - totals[0], more


def predicted(layers: list[Any], hidden: int, b: int, s: int, amp: bool = False, **kernels: Any) -> tuple[int, list[tuple[str, str, int]]]:
    """Bytes that these layers keep by our account, and (place, what, bytes) of each tensor."""
    stream = FP32 if amp else BF16
    setup = Setup(weights=stream, compute=BF16 if amp else None, kernels=Kernels(device="cpu", **kernels), single=b == 1)
    point = Point(Batch(b, s, s))
    rows = []
    for layer in layers:
        tally = write(layer, setup, hidden_dims(hidden), stream).tally
        rows += [(storage.place, storage.what, storage.size.at(point)) for storage in tally.kept]
    return sum(size for _, _, size in rows), rows


def blocks(network: Network) -> list[Any]:
    """Every block of the main network, in order."""
    return [run.layer for run in network.runs for _ in range(run.count)]

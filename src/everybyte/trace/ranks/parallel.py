"""Makes torch's parallel wrappers take the way on fake tensors that they take on real ones, and keeps their bookkeeping out of the record."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from everybyte.trace.hooks.on_import import patched
from everybyte.trace.hooks.patches import replaced, replaced_everywhere
from everybyte.trace.ranks.pipelines import pipelines, transfers
from everybyte.trace.ranks.replicas import replicas

MESH_METHODS = ("__init__", "__getitem__", "_flatten", "_unflatten", "_concatenate", "_get_all_submeshes", "from_group", "mesh", "__repr__")
"""Methods of DeviceMesh that compute with tensors of rank numbers, whose values they need."""


@contextlib.contextmanager
def parallel_wrappers(**neighbours: Any) -> Iterator[None]:
    """While entered, DeviceMesh, DTensor, DistributedDataParallel and pipeline stages work as on GPUs. `neighbours` are those of a pipeline."""
    with contextlib.ExitStack() as stack:
        for patch in (_meshes, _sharding, _read_numbers, _random_numbers, _shared_states, _moved_states, _addresses, replicas, transfers):
            stack.enter_context(patch())
        stack.enter_context(pipelines(**neighbours))
        yield


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, outside all modes of tensors: what it makes are real, small tensors on the CPU that no record sees."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _meshes() -> Iterator[None]:
    from torch.distributed import device_mesh

    importlib.import_module("torch.distributed.fsdp")  # it imports init_device_mesh by its name
    mesh = device_mesh.DeviceMesh
    found: dict[str, Any] = {}
    for name in MESH_METHODS:
        value = vars(mesh).get(name)
        if isinstance(value, property):
            found[name] = property(_real(value.fget))  # type: ignore[arg-type]
        elif isinstance(value, staticmethod):
            found[name] = staticmethod(_real(value.__func__))
        elif inspect.isfunction(value):
            found[name] = _real(value)
    init = _real(device_mesh.init_device_mesh)
    with replaced(mesh, **found), replaced_everywhere(device_mesh.init_device_mesh, init):
        yield


@contextlib.contextmanager
def _sharding() -> Iterator[None]:
    """torch/distributed/tensor/_sharding_prop.py runs each operation once more on fake tensors of the global shape, in the fake mode that it finds: outside
    it, it makes one of its own, and no tensor that never is in memory is recorded."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    with replaced(ShardingPropagator, _propagate_tensor_meta_non_cached=_real(ShardingPropagator._propagate_tensor_meta_non_cached)):
        yield


@contextlib.contextmanager
def _read_numbers() -> Iterator[None]:
    """A sharded tensor's number, such as the norm of all gradients, is read from the tensor of all shards, as any other."""
    from torch.distributed.tensor import DTensor

    def reading(name: str) -> Callable[..., Any]:
        return lambda self, *form: getattr(self.full_tensor(), name)(*form)

    with replaced(DTensor, **{name: reading(name) for name in ("item", "tolist", "__float__", "__format__")}):
        yield


class _Generator:
    """Random numbers of sharded tensors: no state is shared, as fake numbers are all alike. In place of torch/distributed/tensor/_random.py's tracker."""

    distribute_region_enabled = False

    def _distribute_region(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    from torch.distributed.tensor import _random

    with replaced(_random, _rng_tracker=_Generator()), replaced(torch.random, fork_rng=lambda *_, **__: contextlib.nullcontext()):
        yield


@contextlib.contextmanager
def _shared_states() -> Iterator[None]:
    """accelerate (utils/random.py) gives every rank the first one's state of random numbers, by way of the GPU, where it has no values."""
    with patched("accelerate.utils.random", lambda random: replaced(random, synchronize_rng_state=lambda *_, **__: None)):
        yield


@contextlib.contextmanager
def _moved_states() -> Iterator[None]:
    """FSDP, old and new, moves a model on the CPU to the GPU by giving its parameters new data; fake ones keep their old device then, and are told the new."""
    from torch.distributed.fsdp import _init_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    def moving(before: Callable[..., None]) -> Callable[..., None]:
        def move(parameters: list[Any], buffers: list[Any], device: torch.device | None) -> None:
            before(parameters, buffers, device)
            for tensor in (*parameters, *buffers):
                if device is not None and isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
                    tensor.fake_device = device

        return move

    with contextlib.ExitStack() as stack:
        for module in (_init_utils, _fsdp_init):
            stack.enter_context(replaced_everywhere(module._move_states_to_device, moving(module._move_states_to_device)))
        yield


@contextlib.contextmanager
def _addresses() -> Iterator[None]:
    """accelerate (utils/fsdp_utils.py) finds the parameters of an optimizer again by their addresses, which all fake tensors would share."""

    def data_ptr(self: Any) -> int:
        storage = self.untyped_storage()
        return int(storage._cdata + self.storage_offset() * self.itemsize) if storage.nbytes() else 0

    with replaced(FakeTensor, data_ptr=data_ptr):
        yield

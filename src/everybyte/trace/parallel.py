"""Makes torch's parallel wrappers take the way on fake tensors that they take on real ones, and keeps their bookkeeping out of the record."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from everybyte.basics.errors import EverybyteError
from everybyte.trace.patches import replaced, replaced_everywhere

MESH_METHODS = ("__init__", "__getitem__", "_flatten", "_unflatten", "_concatenate", "_get_all_submeshes", "from_group", "mesh", "__repr__")
"""Methods of DeviceMesh that compute with tensors of rank numbers, whose values they need."""


@contextlib.contextmanager
def parallel_wrappers() -> Iterator[None]:
    """While entered, DeviceMesh, DTensor, DistributedDataParallel and pipeline stages work under fake tensors as on GPUs."""
    with contextlib.ExitStack() as stack:
        for patch in (_meshes, _sharding, _random_numbers, _replicas, _transfers, _pipelines):
            stack.enter_context(patch())
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
def _replicas() -> Iterator[None]:
    """DistributedDataParallel: its reducer is C++ and allocates its buckets through the dispatcher, so that they are seen. What needs values is left out: the
    comparison of shapes between ranks, the first broadcast (whose pieces live before the first step alone), and the order of buckets after the
    first step. They have their final sizes from the beginning instead (reducer.cpp rebuild_buckets)."""
    from torch.nn.parallel import distributed as ddp

    assign, forward = dist._compute_bucket_assignment_by_size, ddp.DistributedDataParallel._pre_forward
    init = ddp.DistributedDataParallel._ddp_init_helper

    def helper(self: Any, *args: Any, **kwargs: Any) -> None:
        def final_sizes(parameters: Any, limits: list[int], *rest: Any) -> Any:
            if limits == [sys.maxsize]:
                limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, self.bucket_bytes_cap]
            return assign(parameters, limits, *rest)

        with replaced(dist, _compute_bucket_assignment_by_size=final_sizes):
            init(self, *args, **kwargs)
        self.reducer = _Reducer(self.reducer)

    def pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self._comm_hooks:
            # C++'s own hook reads the result of the process group, and a fake group has none
            self.register_comm_hook(None, lambda state, bucket: _summed(bucket))
        return forward(self, *inputs, **kwargs)

    reduce, register = dist.all_reduce, dist._register_comm_hook

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        done = reduce(tensor, *args, **kwargs)
        return None if done is None else _Done([tensor])

    def register_comm_hook(reducer: Any, *args: Any) -> None:
        register(reducer.reducer if isinstance(reducer, _Reducer) else reducer, *args)

    nothing = {"_verify_param_shape_across_processes": lambda *_, **__: None, "_sync_module_states": lambda *_, **__: None}
    with (
        replaced(ddp, **nothing),
        replaced(ddp.DistributedDataParallel, _ddp_init_helper=helper, _pre_forward=pre_forward),
        replaced(dist, all_reduce=all_reduce, _register_comm_hook=register_comm_hook),
    ):
        yield


class _Reducer:
    """The reducer, whose buckets are never rebuilt."""

    def __init__(self, reducer: Any) -> None:
        self.reducer = reducer

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reducer, name)


class _Done:
    """A collective that is done. It holds its tensors until the program waits for it (ProcessGroupNCCL's stash); comm hooks ask for its result."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def wait(self, *_: Any) -> bool:
        """It is done."""
        self.tensors = []
        return True

    def is_completed(self) -> bool:
        """It is done."""
        return True

    def get_future(self) -> Any:
        """Its tensors."""
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        return future


def _summed(bucket: Any) -> Any:
    """The sum over all ranks lies in the bucket itself."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


@contextlib.contextmanager
def _transfers() -> Iterator[None]:
    """Pipeline schedules wait for what they have sent at the end of a step, and keep it until then."""
    batch, send, receive = dist.batch_isend_irecv, dist.isend, dist.irecv

    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        batch(operations)
        return [_Done([operation.tensor for operation in operations])]

    def isend(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if send(tensor, *args, **kwargs) is None else _Done([tensor])

    def irecv(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if receive(tensor, *args, **kwargs) is None else _Done([tensor])

    with replaced_everywhere(batch, batch_isend_irecv), replaced_everywhere(send, isend), replaced_everywhere(receive, irecv):
        yield


class UnknownShapes(EverybyteError):
    """A pipeline stage asks its neighbours for the shapes of its inputs, and they are not there."""


@contextlib.contextmanager
def _pipelines() -> Iterator[None]:
    """Stages of torch.distributed.pipelining agree by messages whether they know the shapes between them; alone, a stage has to know them."""
    try:
        from torch.distributed.pipelining import _utils, schedules, stage
    except ImportError:
        yield
        return
    static, needs = _utils.InferenceMode.STATIC, _utils.InferenceMode.needs_dynamic

    def warm_up(self: Any, stages: list[Any], has_backward: bool, *_: Any) -> None:
        for one in stages:
            if isinstance(one, stage.PipelineStage):
                if needs(one._user_meta, has_backward):
                    raise UnknownShapes(
                        f"stage {one.stage_index} asks its neighbours for the shapes between them, and the traced rank is alone: "
                        "give PipelineStage input_args and output_args (and input_grads and output_grads if they are DTensors)"
                    )
                one._inference_mode = static

    with contextlib.ExitStack() as stack:
        for value in list(vars(schedules).values()):
            if inspect.isclass(value) and "_warmup_p2p" in vars(value):
                stack.enter_context(replaced(value, _warmup_p2p=warm_up))
        yield

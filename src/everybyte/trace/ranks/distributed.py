"""A program of many GPUs in one process: the rank that is traced is alone, and its process groups are of any size and send nothing.

torch's fake process group answers every collective at once. The program's own `init_process_group("nccl")` gets one, under the environment that
torchrun sets; which groups it makes, and what runs in them, is noted, as NCCL's buffers depend on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, ProcessGroup, _resolve_process_group
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from everybyte.rules.communication.communicators import Communicator
from everybyte.trace.device.launch import environment, gpus_of_node
from everybyte.trace.hooks.patches import replaced, replaced_everywhere

ops = torch.ops.c10d
FAKE = "fake"
WORLD = "default_pg"
"""How torch describes the group of all ranks."""
MESH = "mesh_"
"""How its description of a group begins that is an axis of a DeviceMesh."""


@dataclass
class Group:
    """A process group, and what has run in it."""

    name: str
    ranks: tuple[int, ...]
    collective: bool = False
    reduces: bool = False
    peers: set[int] = field(default_factory=set)

    def communicator(self, rank: int, node: int) -> Communicator:
        """What NCCL makes of it."""
        near = sum(other // node == rank // node for other in self.ranks)
        return Communicator(self.name, len(self.ranks), near, collective=self.collective, reduces=self.reduces, peers=len(self.peers))


class Groups:
    """The process groups of a program in which something has run: NCCL makes a communicator at the first operation in it."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._found: dict[str, Group] = {}

    def communicators(self) -> tuple[Communicator, ...]:
        """One for each group of two ranks and more."""
        node = gpus_of_node(self.world)
        return tuple(group.communicator(self.rank, node) for group in self._found.values() if len(group.ranks) > 1)

    def answer(self, func: Any, args: Any) -> Any:
        """Notes a collective and answers it in place of the group, which would copy tensors piece by piece. `NotImplemented`: the operation has to run."""
        note = NOTED.get(func)
        if note is None:
            return NotImplemented
        group = self._group(args)
        if group is not None:
            self._note(group, note, func, args)
        return _done(func, args)

    def _note(self, group: Group, kind: str, func: Any, args: Any) -> None:
        if kind == "peer":
            group.peers.update(args[2:3] if func is not ops.recv_any_source_.default else ())
        elif kind == "all":
            group.peers.update(other for other in group.ranks if other != self.rank)
        elif kind == "root":
            root = args[3]
            group.peers.update((root,) if root != self.rank else (other for other in group.ranks if other != root))
        else:
            group.collective = True
            group.reduces |= kind == "reduce"

    def _group(self, args: Any) -> Group | None:
        found = next((_process_group(value) for value in reversed(args) if _is_group(value)), None)
        if found is None:
            return None
        if found.group_name not in self._found:
            self._found[found.group_name] = Group(self._free(_name(found)), tuple(dist.get_process_group_ranks(found)))
        return self._found[found.group_name]

    def _free(self, name: str) -> str:
        """The name, or with a number if another group has it."""
        taken = {group.name for group in self._found.values()}
        return name if name not in taken else next(other for number in range(2, 10_000) if (other := f"{name}-{number}") not in taken)


def _name(group: ProcessGroup) -> str:
    described = str(group.group_desc)
    if described == WORLD:
        return "world"
    return described.removeprefix(MESH) if described.startswith(MESH) else "group"


def _is_group(value: Any) -> bool:
    if isinstance(value, torch.ScriptObject):
        return bool(value._type().name() == "ProcessGroup")
    return isinstance(value, (str, ProcessGroup))


def _process_group(value: Any) -> ProcessGroup:
    if isinstance(value, str):
        return _resolve_process_group(value)
    return value if isinstance(value, ProcessGroup) else ProcessGroup.unbox(value)


def _done(func: Any, args: Any) -> Any:
    """What an operation returns that is done at once. Functional collectives have results of their own: they run on their fake implementations."""
    if func.namespace != "c10d":
        return NotImplemented
    work = FakeWork().boxed()
    return (args[0], work) if len(func._schema.returns) == 2 else work


def _known() -> dict[Any, str]:
    """Operation -> what it needs: rings for collectives, among them reductions; connections with one peer, or with all."""
    functional = torch.ops._c10d_functional
    kinds = {
        "reduce": ("allreduce_", "allreduce_coalesced_", "barrier"),
        "ring": (
            "broadcast_",
            "reduce_",
            "allgather_",
            "_allgather_base_",
            "allgather_coalesced_",
            "allgather_into_tensor_coalesced_",
            "reduce_scatter_",
            "_reduce_scatter_base_",
            "reduce_scatter_tensor_coalesced_",
        ),
        "peer": ("send", "recv_", "recv_any_source_"),
        "all": ("alltoall_", "alltoall_base_"),
        "root": ("gather_", "scatter_"),
    }
    found = {getattr(ops, name).default: kind for kind, names in kinds.items() for name in names}
    for name in ("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"):
        found[getattr(functional, name).default] = "reduce"
    for name in (
        "broadcast",
        "broadcast_",
        "all_gather_into_tensor",
        "all_gather_into_tensor_out",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_out",
        "reduce_scatter_tensor_coalesced",
    ):
        found[getattr(functional, name).default] = "ring"
    found[functional.all_to_all_single.default] = "all"
    return found


NOTED = _known()


@contextlib.contextmanager
def process_groups(rank: int, world: int) -> Iterator[None]:
    """While entered, process groups that the program makes are fake ones of `world` ranks, whatever backend it names; it sees the backend that it named."""
    named: dict[str, str] = {}
    make, helper, backend_of = c10d.init_process_group, c10d._new_process_group_helper, dist.get_backend

    def init_process_group(backend: str | None = None, *_: Any, **__: Any) -> None:
        named["world"] = str(backend or "nccl")
        make(FAKE, store=FakeStore(), rank=rank, world_size=world)

    def new_group(size: int, own: int, ranks: list[int], backend: Any, store: Any, name: Any, **rest: Any) -> Any:
        return helper(size, own, ranks, FAKE, store, name, **{**rest, "backend_options": None, "device_id": None})

    def get_backend(group: Any = None) -> str:
        found = str(backend_of(group))
        return named.get("world", found) if found == FAKE else found

    said: dict[str, Any] = {"get_backend": get_backend, "is_nccl_available": lambda: True}
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(dist, **said, **_objects()))
        stack.enter_context(replaced(c10d, _new_process_group_helper=new_group, **_objects()))
        stack.enter_context(replaced_everywhere(make, init_process_group))
        stack.enter_context(mock.patch.dict(os.environ, environment(rank, world)))
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _objects() -> dict[str, Any]:
    """Collectives of Python objects, whose bytes fake tensors do not carry: every other rank has what this one has."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(output: list[Any], source: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if source:
            output[0] = source[0]

    def nothing(*_: Any, **__: Any) -> None:
        return None

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "scatter_object_list": scatter_object_list,
        "broadcast_object_list": nothing,
        "monitored_barrier": nothing,
    }

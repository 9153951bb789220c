"""The communicators of one rank: which groups of ranks each framework makes, and what runs in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.rules.accounting.conventions import Groups
from everybyte.rules.parallel.mesh import NODE, Mesh


class Communicator(Record, frozen=True):
    """One NCCL communicator as a rank of it sees it."""

    name: str
    ranks: int
    node_ranks: int
    """Of its ranks, how many are on one node."""
    collective: bool = True
    """Collectives run in it, for which rings are connected."""
    reduces: bool = True
    """All-reduce is among them."""
    peers: int = 0
    """Ranks with which this one exchanges tensors directly."""

    @property
    def spans_nodes(self) -> bool:
        """Whether its rings go over the network."""
        return self.ranks > self.node_ranks


@lru_cache(maxsize=4096)
def communicators(mesh: Mesh, groups: Groups, *, per_node: int = 0, experts: bool = False, tied: bool = False) -> tuple[Communicator, ...]:
    """The communicators that a rank has in a steady step. torch makes one for a process group when something runs in it for the
    first time (ProcessGroupNCCL), so groups in which nothing runs have none. `per_node`: GPUs of a node, 0 for the usual 8."""
    if mesh.gpus == 1:
        return ()
    node = per_node or min(mesh.gpus, NODE)
    found = _core(mesh, node, experts, tied) if groups == "core" else _torch(mesh, node, groups, experts)
    return tuple(c for c in found if c.ranks > 1)


def _core(mesh: Mesh, node: int, experts: bool, tied: bool) -> Iterator[Communicator]:
    """Megatron Core (core/parallel_state.py): order tp-cp-ep-dp-pp.

    Gradient norms are summed over the model-parallel group, with the distributed optimizer over the world."""
    inner, stage = mesh.tp * mesh.cp * mesh.ulysses, mesh.gpus // mesh.pp
    shards = mesh.dp_shard > 1
    yield _group("world", mesh.gpus, 1, node)
    yield _group("tp", mesh.tp, 1, node, reduces=not mesh.sp)
    yield _exchange("cp", mesh.cp, mesh.tp, node, min(mesh.cp - 1, 2))
    yield _group("dp", mesh.dp * mesh.cp, mesh.tp, node, reduces=not shards)
    if mesh.dp_replicate > 1 and shards:
        yield _group("dp_replicate", mesh.dp_replicate, inner * mesh.dp_shard, node)
    yield _exchange("pp", mesh.pp, stage, node, min(mesh.pp - 1, 2))
    if mesh.pp > 1 and tied:
        yield _group("embedding", 2, stage * (mesh.pp - 1), node)
    if experts:
        yield _exchange("ep", mesh.ep, mesh.etp, node, mesh.ep - 1)
        yield _group("etp", mesh.etp, 1, node, reduces=not mesh.sp)
        yield _group("expert_dp", mesh.expert_dp, mesh.etp * mesh.ep, node, reduces=not shards)


def _torch(mesh: Mesh, node: int, groups: Groups, experts: bool) -> Iterator[Communicator]:
    """Process groups of torch: an axis that is the whole mesh has the default group itself. DeepSpeed clones the world for its data-parallel group
    (deepspeed/utils/groups.py _clone_world_group) and exchanges heads in Ulysses' own group."""
    inner = mesh.tp * mesh.sequence_parallel
    yield _group("world", mesh.gpus, 1, node)
    if groups == "torch and a clone":
        yield _group("dp", mesh.gpus, 1, node)
    found = [
        _group("tp", mesh.tp, 1, node),
        _exchange("cp", mesh.cp, mesh.tp, node, min(mesh.cp - 1, 2)),
        _exchange("ulysses", mesh.ulysses, mesh.tp * mesh.cp, node, mesh.ulysses - 1),
        _group("dp_shard", mesh.dp_shard, inner, node, reduces=False),
        _group("dp_replicate", mesh.dp_replicate, inner * mesh.dp_shard, node),
        _exchange("pp", mesh.pp, mesh.gpus // mesh.pp, node, min(mesh.pp - 1, 2)),
    ]
    yield from (c for c in found if c.ranks < mesh.gpus or c.peers)
    if experts:
        yield _exchange("ep", mesh.ep, 1, node, mesh.ep - 1)


def _group(name: str, size: int, inside: int, node: int, *, reduces: bool = True) -> Communicator:
    """A group of `size` ranks that lie `inside` ranks apart, for collectives."""
    return Communicator(name, size, max(min(size, node // inside), 1), reduces=reduces)


def _exchange(name: str, size: int, inside: int, node: int, peers: int) -> Communicator:
    """The same for exchanges with `peers` others."""
    return Communicator(name, size, max(min(size, node // inside), 1), collective=False, reduces=False, peers=peers)

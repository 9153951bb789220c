"""What a launcher such as torchrun decides for the ranks of a program. Needs no torch: it is asked before torch is loaded."""

from __future__ import annotations

from math import prod

from everybyte.basics.errors import BadInput
from everybyte.rules.parallel.mesh import NODE

PIPELINE = "pp"
LAST = "last"


def gpus_of_node(world: int) -> int:
    """How many of the GPUs are those of one node."""
    return min(world, NODE)


def environment(rank: int, world: int) -> dict[str, str]:
    """The variables that torchrun sets for a rank."""
    local = gpus_of_node(world)
    said = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": rank // local,
        "GROUP_WORLD_SIZE": -(-world // local),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
    }
    return {name: str(value) for name, value in said.items()}


def mesh_of(text: str) -> dict[str, int]:
    """`pp=2,dp=4,tp=2`: the axes of a mesh and their sizes, the outermost first."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals or not name or not size.isdecimal() or int(size) < 1 or name in found:
            raise BadInput("--mesh", f"{text!r} is not of the form dp=4,tp=2")
        found[name] = int(size)
    return found


def world_of(world: int | None, mesh: dict[str, int]) -> int:
    """How many ranks there are: as many as the mesh has places."""
    places = prod(mesh.values())
    if world is not None and mesh and world != places:
        raise BadInput("--world", f"{world} ranks do not fill a mesh of {' x '.join(map(str, mesh.values()))} = {places}")
    return world if world is not None else places


def ranks_of(text: str | None, world: int, mesh: dict[str, int]) -> tuple[int, ...]:
    """The ranks to trace: those that are named (`0,3,last`), else the first of each stage of the mesh's pipeline."""
    if text is None:
        stages = mesh.get(PIPELINE, 1)
        inside = prod(list(mesh.values())[list(mesh).index(PIPELINE) + 1 :]) if stages > 1 else 1
        return tuple(stage * inside for stage in range(stages))
    found = []
    for part in text.split(","):
        name = part.strip()
        if name != LAST and not name.isdecimal():
            raise BadInput("--ranks", f"{name!r} is not a rank number; write for example 0,3,last")
        rank = world - 1 if name == LAST else int(name)
        if rank >= world:
            raise BadInput("--ranks", f"there is no rank {rank} of {world}: they are counted from 0 (--world)")
        found.append(rank)
    return tuple(dict.fromkeys(found))

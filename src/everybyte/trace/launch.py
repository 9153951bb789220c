"""What a launcher such as torchrun decides for the ranks of a program. Needs no torch: it is asked before torch is loaded."""

from __future__ import annotations

from everybyte.rules.mesh import NODE


def gpus_of_node(world: int) -> int:
    """How many of the GPUs are those of one node."""
    return min(world, NODE)


def environment(rank: int, world: int) -> dict[str, str]:
    """The variables that torchrun sets for a rank."""
    local = gpus_of_node(world)
    said = {
        "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local, "GROUP_RANK": rank // local,
        "GROUP_WORLD_SIZE": -(-world // local), "MASTER_ADDR": "localhost", "MASTER_PORT": 29500,
    }  # fmt: skip
    return {name: str(value) for name, value in said.items()}

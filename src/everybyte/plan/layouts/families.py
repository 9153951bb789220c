"""What each family of training frameworks lets one choose (data/families.json)."""

from __future__ import annotations

from functools import cache
from os.path import dirname, join

import msgspec

from everybyte.basics.errors import BadInput


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choices of a family; an empty word stands for what the framework does by itself."""

    frameworks: tuple[str, ...]
    axes: tuple[str, ...]
    """Axes beside data parallel."""
    sharding: tuple[str, ...]
    """Over several GPUs; on one GPU nothing is sharded."""
    recompute: tuple[str, ...]
    offload: tuple[str, ...]
    precision: tuple[str, ...]
    """Tried where the job states none."""
    grads: tuple[str, ...]
    moments: tuple[str, ...]
    source: str


@cache
def _families() -> dict[str, Family]:
    with open(join(dirname(__file__), "data", "families.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=dict[str, Family])


def family_of(framework: str) -> tuple[str, Family]:
    """Name and choices of the family of a framework. Raises BadInput for one that no family has."""
    for name, family in _families().items():
        if framework in family.frameworks:
            return name, family
    raise BadInput("train.framework", f"no layouts are known for {framework!r}")

"""torchtune's distributed recipes: FSDP2 with a unit a layer (training/_distributed.py shard_model), and units for what configs name beside them."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.engines.torchtune.extra import Keys
from everybyte.job import Hardware, Train
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import ParallelPlan
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.sharding.fsdp_units import Units

PIECES = {"tok_embeddings": "embed", "output": "head"}
"""torchtune's names -> pieces of the network."""
LARGE = 100_000
"""Words from which on configs for full training of Llama (3 and later) shard embedding and output apart."""


def sharded(train: Train, hardware: Hardware | None, framework: str, choices: ResolvedSettings) -> Train:
    """The job with the recipes' only way of using several GPUs filled in."""
    gpus = (hardware.gpus if hardware else None) or 1
    if gpus == 1:
        return train
    sharding = choices.pick("train.sharding", train.sharding, "fsdp2", default_of(framework))
    if sharding not in ("fsdp2", "fsdp2-no-reshard", "hsdp"):
        raise Unsupported("train.sharding", f"{sharding!r}: torchtune's distributed recipes shard by FSDP2 alone; say fsdp2, or leave it out")
    return replace(train, sharding=sharding)


def with_units(found: ParallelPlan, train: Train, network: Network, choices: ResolvedSettings) -> ParallelPlan:
    """The layout with `custom_sharded_layers` as units."""
    if not isinstance(found.layout, Fsdp2):
        return found
    usual = ("tok_embeddings", "output") if train.adapter is None and network.family == "llama" and network.vocab > LARGE and not network.tied else ()
    asked = choices.pick("train.extra.custom_sharded_layers", section(train.extra, Keys).custom_sharded_layers, usual, default_of("torchtune's configs"))
    wrong = next((name for name in asked if name not in PIECES), None)
    if wrong is not None:
        raise BadInput("train.extra.custom_sharded_layers", f"{wrong!r} is not supported; known: {', '.join(PIECES)}")
    return replace(found, layout=replace(found.layout, units=Units(tuple(PIECES[name] for name in asked))))

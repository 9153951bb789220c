"""How fast GPUs of a kind talk to each other: inside a machine from the card, between machines from the instances that providers rent out."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.catalog.gpus import Gpu
from everybyte.catalog.instances import all_instances

BITS = 8
GIGA = 10**9
PCIE_5_X16 = 63.0
"""GB/s in one direction of 16 lanes of PCIe 5 (PCI-SIG: 32 GT/s a lane, 128b/130b); each generation doubles the rate."""
PCIE_GENERATION = 5
CLUSTERED = 4
"""Machines with so many GPUs are rented as nodes of a cluster, with a network made for it."""


class Links(Record, frozen=True):
    """Bytes a second in one direction, of one GPU."""

    inside: float
    """To the GPUs of its machine."""
    between: float
    """To other machines."""
    host: float
    """To the memory of the host."""


@lru_cache(maxsize=256)
def links_of(card: Gpu) -> Links:
    """The links of a card. Where no instance states a network, GPUs of several machines are taken to talk as fast as PCIe lets them."""
    host = PCIE_5_X16 * 2.0 ** ((card.pcie_gen or PCIE_GENERATION) - PCIE_GENERATION) * GIGA
    inside = card.interconnect_gb_s / 2 * GIGA if card.interconnect_gb_s else host
    networks = [
        one.network_gbps / BITS / one.gpus * GIGA for one in all_instances() if one.gpu.name == card.name and one.network_gbps and one.gpus >= CLUSTERED
    ]
    return Links(inside, max(networks, default=host), host)

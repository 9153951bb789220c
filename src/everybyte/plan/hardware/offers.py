"""Instances that have so many GPUs of a kind, the cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everybyte.catalog.gpus import Gpu
from everybyte.catalog.instances import Instance, all_instances

CLUSTERED = 4
"""Machines with so many GPUs are rented as nodes of a cluster, with a network made for it; GPUs of smaller ones do not work together on one job."""
COMPARED = "USD"
"""Prices in other currencies are shown, not ranked: no rate of exchange is assumed."""


class Offer(NamedTuple):
    """`number` instances of one kind. Prices are for all of them, in `instance.currency` an hour."""

    instance: Instance
    number: int

    @property
    def per_hour(self) -> float | None:
        """On demand."""
        return None if self.instance.price_per_hour is None else self.instance.price_per_hour * self.number

    @property
    def spot_per_hour(self) -> float | None:
        """On the spot market, where it can be taken away at any time."""
        return None if self.instance.spot_per_hour is None else self.instance.spot_per_hour * self.number


def offers(gpu: Gpu, gpus: int, providers: Sequence[str] = ()) -> list[Offer]:
    """What the catalogue knows to rent with at least `gpus` GPUs of a kind: the lowest on-demand price first, then fewer instances; those without a price last.

    Several instances are offered where each has CLUSTERED GPUs. `providers` are names of providers; none means all.
    """
    wanted = {name.casefold() for name in providers}
    own = [one for one in all_instances() if one.gpu.name == gpu.name and (not wanted or one.provider.casefold() in wanted)]
    return sorted((Offer(one, -(-gpus // one.gpus)) for one in own if one.gpus >= min(gpus, CLUSTERED)), key=_rank)


def cheapest_spot(found: Sequence[Offer]) -> Offer | None:
    """The offer with the lowest spot price in the currency that is compared."""
    priced = [offer for offer in found if offer.spot_per_hour is not None and offer.instance.currency == COMPARED]
    return min(priced, key=lambda offer: offer.spot_per_hour or 0.0, default=None)


def _rank(offer: Offer) -> tuple[bool, bool, float, int]:
    return offer.per_hour is None, offer.instance.currency != COMPARED, offer.per_hour or 0.0, offer.number

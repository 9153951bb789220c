"""What GPUs cost by the hour: a price that the user states, or the lowest of the catalogue with its date."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.catalog.gpus import Gpu
from everybyte.plan.hardware.offers import COMPARED, offers


class Rent(NamedTuple):
    """Price of one GPU and hour; None where nobody states one."""

    per_gpu_hour: float | None
    source: str = ""
    """Whose price it is, and of which day."""

    def of(self, gpus: int) -> float | None:
        """Of so many GPUs an hour."""
        return None if self.per_gpu_hour is None else self.per_gpu_hour * gpus


def rent_of(card: Gpu | None, gpus: int, stated: float | None = None, providers: tuple[str, ...] = ()) -> Rent:
    """The stated price, else that of the cheapest instances with enough such GPUs; whole instances are paid for."""
    if stated is not None:
        return Rent(stated, "the stated price")
    for offer in offers(card, gpus, providers) if card is not None else ():
        if offer.per_hour is not None and offer.instance.currency == COMPARED:
            one = offer.instance
            day = f" of {one.price_date}" if one.price_date else ", without a date"
            return Rent(offer.per_hour / gpus, f"{offer.number} x {one.provider} {one.name}, on-demand price{day}")
    return Rent(None)

"""Buying against renting: after how many hours of use a machine has cost less than its rent."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu

WATTS_PER_KW = 1000


class BreakEven(NamedTuple):
    """`hours` of use after which buying is cheaper; None where the electricity alone costs as much as the rent."""

    price: float
    rent_per_hour: float
    power_per_hour: float
    hours: float | None


def break_even(gpu: Gpu, gpus: int, rent_per_hour: float, price: float, per_kwh: float) -> BreakEven:
    """`price` is that of the whole machine, `per_kwh` that of electricity, both in the currency of the rent. The GPUs are taken to draw their rated power
    all the time; what else the machine draws, cooling and people are not counted.

    Raises BadInput where the rated power of the GPU is not known.
    """
    if gpu.tdp_w is None:
        raise BadInput("--buy", f"the rated power of {gpu.name} is not known, so that its electricity cannot be priced")
    power = gpu.tdp_w * gpus / WATTS_PER_KW * per_kwh
    saved = rent_per_hour - power
    return BreakEven(price, rent_per_hour, power, price / saved if saved > 0 else None)

"""Instances of cloud providers, with the price and the date of the price. Prices are facts of a day, never presented as current."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from everybyte.catalog.gpus import Gpu, find_gpu
from everybyte.catalog.names import read_table

INSTANCES = "instances.csv"


class Instance(NamedTuple):
    """One kind of machine that a provider rents out by the hour. None where no source states a value."""

    name: str
    provider: str
    gpu: Gpu
    gpus: int
    host_ram_gib: float | None
    network_gbps: float | None
    price_per_hour: float | None
    """On demand, for the whole instance."""
    spot_per_hour: float | None
    currency: str
    """USD or CNY."""
    region: str
    price_date: str
    """ISO date on which the source stated the price; empty where the source has none."""
    price_source: str
    confidence: str
    note: str


@cache
def all_instances() -> tuple[Instance, ...]:
    """Every instance of the catalogue, in its order. Raises BadInput for a row that names a GPU which nobody knows."""
    header, *rows = read_table(INSTANCES)
    return tuple(_instance(dict(zip(header, row, strict=True))) for row in rows)


def _instance(row: dict[str, str]) -> Instance:
    return Instance(
        name=row["instance_type"],
        provider=row["provider"],
        gpu=find_gpu(row["gpu"]),
        gpus=int(row["gpu_count"]),
        host_ram_gib=_number(row["host_ram_gib"]),
        network_gbps=_number(row["network_gbps"]),
        price_per_hour=_number(row["price_per_hour"]),
        spot_per_hour=_number(row["spot_price_per_hour"]),
        currency=row["currency"],
        region=row["region"],
        price_date=row["price_date"],
        price_source=row["price_source"],
        confidence=row["confidence"],
        note=row["note"],
    )


def _number(text: str) -> float | None:
    return float(text) if text else None

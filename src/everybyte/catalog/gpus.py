"""Accelerators: what software sees of their memory, their rates, and the many names people give them."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

from everybyte.basics.units import GiB, MiB
from everybyte.catalog.names import read_header, read_row, read_table, refuse_unknown, words

GPUS, ALIASES = "gpus.csv", "gpu_aliases.csv"


class Gpu(NamedTuple):
    """One device as software sees it: of a card with two dies, one die. Rates are dense; None where no source states a value."""

    name: str
    vendor: str
    segment: str
    """datacenter, workstation, consumer or unified (memory shared with the CPU)."""
    aliases: tuple[str, ...]
    """What the vendor's tools print."""
    capacity: int
    """Bytes that a framework can use, before its own context."""
    capacity_source: str
    """Where `capacity` comes from: what torch sees, the total of the vendor's tool (an upper bound), or the nominal size (an upper bound)."""
    memory_gb_marketing: float
    memory_usable_mib: int | None
    memory_usable_note: str
    memory_type: str
    bandwidth_gb_s: float | None
    fp32_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    fp4_tflops: float | None
    interconnect: str
    interconnect_gb_s: float | None
    """Both directions together."""
    pcie_gen: int | None
    tdp_w: float | None
    compute_capability: str
    multiprocessors: int | None
    launch_year: int
    source: str
    confidence: str
    """high, medium or low."""

    def links(self, gpus: int) -> bool:
        """Whether so many of them in one machine are all joined by links of their own; a bridge joins two cards, and others talk over PCIe."""
        return bool(self.interconnect_gb_s) and (gpus <= BRIDGED or "bridge" not in self.interconnect)


BRIDGED = 2
"""Cards that a bridge joins."""


@lru_cache(maxsize=1024)
def find_gpu(name: str, path: str = "hardware.gpu") -> Gpu:
    """The accelerator called `name`: its catalogue name, an alias, or what nvidia-smi prints, without regard to case and separators.

    A short name that several cards share means the one that `data/gpu_aliases.csv` states, with the reason.
    Raises BadInput at `path` with the three nearest names.
    """
    known = read_row(GPUS, name) or read_row(GPUS, (read_row(ALIASES, name) or ("", ""))[1])
    if known is not None:
        return _gpu(known[0])
    index = _index()
    key = _key(name)
    found = index.get(key) or _find_with_size(name, index)
    if found is None:
        refuse_unknown(name, key, index, path=path, kind="GPU", way_out="describe a GPU that is not in the catalogue as {memory_bytes: ..., name: ...}")
    return _gpu(found)


def all_gpus() -> tuple[Gpu, ...]:
    """Every accelerator of the catalogue, in its order."""
    return tuple(_gpu(name) for name in _rows())


# Words that tools print before the model, or that carry nothing: `NVIDIA GeForce RTX 4090` and `RTX 4090` are one card.
_EMPTY_WORDS = frozenset({"nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel", "google", "huawei", "apple", "aws", "gpu", "graphics"})
_SIZE = re.compile(r"(?<![a-z0-9])([0-9]{1,4})[\s_-]*(?:gib|gb|g)(?![a-z0-9])")


def _key(name: str) -> str:
    """The form in which names are compared: `NVIDIA A100-SXM4-80GB` -> `a100sxm480gb`; `80G` and `80 GiB` are `80gb`."""
    sized = _SIZE.sub(r"\1gb", name.casefold())
    return "".join(word for word in words(sized) if word not in _EMPTY_WORDS)


def _find_with_size(name: str, index: dict[str, str]) -> str | None:
    """`RTX 4090 24GB`: a known name beside the memory that the card has."""
    sizes = _SIZE.findall(name.casefold())
    found = index.get(_key(_SIZE.sub(" ", name.casefold())))
    if len(sizes) != 1 or found is None or _gpu(found).memory_gb_marketing != int(sizes[0]):
        return None
    return found


@cache
def _rows() -> dict[str, dict[str, str]]:
    header, *rows = read_table(GPUS)
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


@cache
def _index() -> dict[str, str]:
    """Folded name -> catalogue name; a catalogue name comes before a printed one, and that before an alias."""
    index = {_key(name): name for name in _rows()}
    for name, row in _rows().items():
        for printed in row["aliases"].split("|"):
            index.setdefault(_key(printed), name)
    for alias, name, _ in read_table(ALIASES)[1:]:
        index.setdefault(_key(alias), name)
    index.pop("", None)
    return index


@cache
def _gpu(name: str) -> Gpu:
    row = dict(zip(read_header(GPUS), read_row(GPUS, name) or [], strict=True))
    usable_mib = int(row["memory_usable_mib"]) if row["memory_usable_mib"] else None
    capacity, capacity_source = _capacity(row["torch_total_gib"], usable_mib, float(row["memory_gb_marketing"]))
    return Gpu(
        name=name,
        vendor=row["vendor"],
        segment=row["segment"],
        aliases=tuple(filter(None, row["aliases"].split("|"))),
        capacity=capacity,
        capacity_source=capacity_source,
        memory_gb_marketing=float(row["memory_gb_marketing"]),
        memory_usable_mib=usable_mib,
        memory_usable_note=row["memory_usable_mib_note"],
        memory_type=row["memory_type"],
        bandwidth_gb_s=_number(row["bandwidth_gb_s"]),
        fp32_tflops=_number(row["fp32_tflops"]),
        tf32_tflops=_number(row["tf32_dense_tflops"]),
        fp16_tflops=_number(row["fp16_dense_tflops"]),
        bf16_tflops=_number(row["bf16_dense_tflops"]),
        fp8_tflops=_number(row["fp8_dense_tflops"]),
        int8_tops=_number(row["int8_dense_tops"]),
        fp4_tflops=_number(row["fp4_dense_tflops"]),
        interconnect=row["interconnect"],
        interconnect_gb_s=_number(row["interconnect_gb_s_bidir"]),
        pcie_gen=int(row["pcie_gen"]) if row["pcie_gen"] else None,
        tdp_w=_number(row["tdp_w"]),
        compute_capability=row["compute_capability"],
        multiprocessors=int(row["multiprocessors"]) if row["multiprocessors"] else None,
        launch_year=int(row["launch_year"]),
        source=row["source"],
        confidence=row["confidence"],
    )


def _capacity(torch_total_gib: str, usable_mib: int | None, marketing_gb: float) -> tuple[int, str]:
    """Bytes that a framework sees, by the best source there is. Makers count memory chips in GiB and write GB."""
    if torch_total_gib:
        return round(float(torch_total_gib) * GiB), "total capacity as torch reports it"
    if usable_mib is not None:
        return usable_mib * MiB, "total of the vendor's tool; torch sees up to a few per cent less"
    return round(marketing_gb * GiB), "nominal size; torch sees up to a few per cent less"


def _number(text: str) -> float | None:
    return float(text) if text else None

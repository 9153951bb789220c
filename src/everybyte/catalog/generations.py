"""What GPUs of one generation share, and what engines decide by a word in a GPU's name: both as data."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from everybyte.catalog.names import read_table
from everybyte.catalog.releases import Change, Release, number_of


class Generation(NamedTuple):
    """GPUs of one major compute capability."""

    major: int
    context_bytes: int
    """Of a process's CUDA context with lazily loaded modules."""
    context_basis: str
    """How that is known: calibrated or assumed."""
    multiprocessors: int | None
    """Those of the best known card, for a card that the catalogue does not have; None where it is not stated."""
    nccl_rings: int | None
    """Channels of NCCL's rings between GPUs with NVLink; None where it is not stated."""
    nvls_channels: int | None
    """Channels of NCCL's multicast buffers (NVLink SHARP); None where there are none, or nothing is known."""
    source: str


USUAL = 8
"""What stands for a generation that has no row, and for a GPU whose compute capability is not known."""


def major_of(compute_capability: str) -> int:
    """`9.0` -> 9; the usual generation where the catalogue does not say."""
    head = compute_capability.partition(".")[0]
    return int(head) if head.isdigit() else USUAL


def generation_of(compute_capability: str) -> Generation:
    """The generation of a GPU, the usual one for what has no row."""
    found = generations()
    return found.get(major_of(compute_capability), found[USUAL])


@cache
def generations() -> dict[int, Generation]:
    """Major compute capability -> its generation."""
    header, *rows = read_table("gpu_generations.csv")
    return {int(row[0]): _generation(dict(zip(header, row, strict=True))) for row in rows}


def _generation(row: dict[str, str]) -> Generation:
    return Generation(
        major=int(row["major"]),
        context_bytes=int(row["context_bytes"]),
        context_basis=row["context_basis"],
        multiprocessors=int(row["multiprocessors"]) if row["multiprocessors"] else None,
        nccl_rings=int(row["nccl_rings"]) if row["nccl_rings"] else None,
        nvls_channels=int(row["nvls_channels"]) if row["nvls_channels"] else None,
        source=row["source"],
    )


def by_word(release: Release, gpu: str, setting: str) -> str | None:
    """The value that an engine gives a setting because of a word in the GPU's name, the first word of the table that is in it; None without one."""
    name = gpu.casefold()
    for word, change in _words(release.line):
        if word in name and change.name == setting and change.holds(release.number, release.variant):
            return change.value
    return None


@cache
def _words(engine: str) -> tuple[tuple[str, Change], ...]:
    """(word, setting) of one engine."""
    header, *rows = read_table("gpu_words.csv")
    table = [dict(zip(header, row, strict=True)) for row in rows]
    return tuple(
        (row["word"], Change(row["setting"], number_of(row["since"]), number_of(row["until"]), "", row["value"], row["word"], row["source"]))
        for row in table
        if row["engine"] == engine
    )

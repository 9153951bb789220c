"""Which day of torchtitan's code a job means. What changed on which day is data (`catalog/data/releases/torchtitan.csv`)."""

from __future__ import annotations

import re

from everybyte.catalog.releases import Number, Release, newest, number_of, releases

LINE = "torchtitan"
CUDNN_FIRST = "10.0"
"""Compute capability of the GPUs on which cuDNN's attention kernel comes first."""


def stores_attention(release: Release, compute_capability: str) -> bool:
    """Selective recomputing keeps the result of attention, but for cuDNN's kernel while the list of kept operations did not know it."""
    return compute_capability != CUDNN_FIRST or not release.has("drops_cudnn_attention")


def release_of(version: str | None) -> Release:
    """The release that a job's `version` names: by date (`2025-08`, `2024-12 (torch 1963fc8, titan 9dec370)`), or by number (`0.1.0`).

    A date without month or day counts as its last day, unless the PyTorch nightly build or torchtitan's own number beside it is older.
    """
    text = version or ""
    date = re.search(r"\b(20\d\d)(?:-(\d\d))?(?:-(\d\d))?\b", text)
    torch = re.search(r"torch (\d+)\.(\d+)\.0a0", text)
    number = re.search(r"(?:titan |^v?)(\d+\.\d+\.\d+)\b", text)
    limits = [newest(LINE).number]
    if date is not None:
        year, month, day = date.groups()
        limits.append((int(year), int(month or 12), int(day or 31)))
    if torch is not None:
        limits += _branch_cut((int(torch[1]), int(torch[2])))
    if number is not None and date is None:
        limits += [known.number for known in releases(LINE).known if known.name == number[1]]
    return Release(LINE, min(limits))


def _branch_cut(torch: Number) -> list[Number]:
    """The day on which PyTorch's release branch was cut: a nightly build `2.7.0a0` is older than that. Empty for a branch that is not in the table."""
    day = Release("torch", torch).find("branch_cut")
    return [] if day is None else [number_of(day)]

"""A profile as figures by the contract's names."""

from __future__ import annotations

from collections.abc import Sequence

from everybyte.measure.profiles.read import Profile
from everybyte.measure.start_logs.figure import Figure, StartLog

ENGINE = "torch.profiler"


def figures_of(profiles: Sequence[Profile]) -> StartLog:
    """Peaks of each device; of host memory no figure but `host.bytes`. Categories at the peak stand as given facts."""
    measured: list[Figure] = []
    given: dict[str, float] = {}
    for one in profiles:
        if one.device == "cpu":
            measured.append(_figure("host.torch", one.device, one.allocated_peak))
            continue
        measured.append(_figure("peak.allocated", one.device, one.allocated_peak))
        if one.reserved_peak is not None:
            measured.append(_figure("peak.reserved", one.device, one.reserved_peak))
        given.update({f"at_peak.{category}": float(size) for category, size in one.at_peak.items()})
    return StartLog(ENGINE, None, tuple(measured), given)


def _figure(name: str, device: str, nbytes: int) -> Figure:
    return Figure(name, device, float(nbytes), "bytes", 1.0, 0)
